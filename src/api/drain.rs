//! What is left of a request's body when its handler has answered early.
//! Never holds an answer back. Invariant: a client that still sends gets to read the answer, within a bound.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};

const MAX_DRAINED_BYTES: usize = 256 << 20;
const MAX_DRAIN_TIME: Duration = Duration::from_secs(10);

/// Closing a connection with unread bytes on it makes the client's kernel throw our answer away (TCP reset), so
/// bytes that nobody wants are read and forgotten for a while.
pub async fn drain_unread_body(request: Request, next: Next) -> Response {
    next.run(request.map(|body| Body::new(Drained(Some(body)))))
        .await
}

struct Drained(Option<Body>);

impl HttpBody for Drained {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match &mut self.0 {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map(HttpBody::size_hint).unwrap_or_default()
    }
}

impl Drop for Drained {
    fn drop(&mut self) {
        let Some(mut body) = self.0.take().filter(|body| !body.is_end_stream()) else {
            return;
        };
        tokio::spawn(tokio::time::timeout(MAX_DRAIN_TIME, async move {
            let mut drained = 0;
            while let Some(Ok(frame)) = body.frame().await {
                drained += frame.data_ref().map_or(0, Bytes::len);
                if drained > MAX_DRAINED_BYTES {
                    break;
                }
            }
        }));
    }
}
