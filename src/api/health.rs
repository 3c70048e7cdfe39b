//! `GET /health`: is the service able to do its work, and who is it.
//! Needs no key and tells nothing of sessions but their number. Invariant: 200 only if backend and store answer.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};

use super::Shared;
use crate::metrics::METRICS;

pub async fn health(State(state): State<Shared>) -> (StatusCode, Json<Value>) {
    let core = &state.core;
    let (backend, store) = tokio::join!(core.backend().check(), core.store().check());
    let mut reasons = Vec::new();
    if let Err(error) = backend {
        reasons.push(format!("backend: {error}"));
    }
    if let Err(error) = store {
        tracing::warn!(%error, "the store does not answer");
        reasons.push("store: the S3 store does not answer".to_owned());
    }
    if let Some(shortage) = core.disk_shortage() {
        reasons.push(format!("disk: {shortage}"));
    }
    let (pool_size, pool_available) = core.pool_counts();
    let mut body = json!({
        "status": if reasons.is_empty() { "ok" } else { "degraded" },
        "worker_id": state.worker_id,
        "version": env!("CARGO_PKG_VERSION"),
        "backend": core.backend().name(),
        "pool_size": pool_size,
        "pool_available": pool_available,
        "active_sessions": core.open_sessions(),
        "uptime_seconds": state.started.elapsed().as_secs(),
        "redis_connected": false,
        "s3": state.s3_kind,
        "workspace_quota": core.workspace_quota(),
    });
    if reasons.is_empty() {
        return (StatusCode::OK, Json(body));
    }
    body["reasons"] = json!(reasons);
    (StatusCode::SERVICE_UNAVAILABLE, Json(body))
}

/// `GET /metrics`, as Prometheus reads it.
pub async fn metrics(State(state): State<Shared>) -> impl axum::response::IntoResponse {
    let text = METRICS.text(state.core.open_sessions(), state.core.pool_counts());
    let content_type = "text/plain; version=0.0.4; charset=utf-8";
    ([(axum::http::header::CONTENT_TYPE, content_type)], text)
}
