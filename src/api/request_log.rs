//! The id of a request, on the way in and on the way out, and its one line in the log.
//! Never logs bodies, keys or queries. Invariant: every response carries `X-Request-Id`.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::extract::Request;
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument;

const HEADER: &str = "x-request-id";
const MAX_ID_BYTES: usize = 128;

pub async fn with_request_id(request: Request, next: Next) -> Response {
    let id = request_id(&request);
    let shown = id.to_str().unwrap_or_default().to_owned();
    let span = tracing::info_span!("request", id = shown);
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let started = Instant::now();
    let mut response = next.run(request).instrument(span.clone()).await;
    let (status, duration_ms) = (
        response.status().as_u16(),
        started.elapsed().as_secs_f64() * 1e3,
    );
    span.in_scope(|| {
        if path == "/health" {
            tracing::debug!(%method, path, status, duration_ms, "answered");
        } else {
            tracing::info!(%method, path, status, duration_ms, "answered");
        }
    });
    response.headers_mut().insert(HEADER, id);
    response
}

/// The caller's, if it is short and plain, else a new one.
fn request_id(request: &Request) -> HeaderValue {
    let given = request.headers().get(HEADER);
    let plain = |id: &&HeaderValue| {
        (1..=MAX_ID_BYTES).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    given.filter(plain).cloned().unwrap_or_else(new_id)
}

/// Random once per process, then counted: an id costs no system call.
fn new_id() -> HeaderValue {
    static PROCESS: LazyLock<u64> = LazyLock::new(|| uuid::Uuid::new_v4().as_u64_pair().0);
    static COUNT: AtomicU64 = AtomicU64::new(1);
    let id = format!(
        "{:016x}{:016x}",
        *PROCESS,
        COUNT.fetch_add(1, Ordering::Relaxed)
    );
    HeaderValue::from_str(&id).expect("hex digits are a header value")
}
