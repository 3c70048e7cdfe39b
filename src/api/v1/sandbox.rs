//! Reset, interrupt, stop, status and the list of sandboxes.
//! None of them waits behind a running cell. Invariant: stopping what does not exist is a success that says so.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::api::Shared;
use crate::api::input::{JsonBody, QueryOf, session_ids};
use crate::api::problem::Problem;
use crate::model::execution::VariableState;
use crate::session::SessionStatus;

#[derive(Deserialize)]
pub struct SessionRequest {
    pub(super) user_id: String,
    pub(super) session_id: String,
}

pub async fn reset(
    State(state): State<Shared>,
    JsonBody(request): JsonBody<SessionRequest>,
) -> Result<Json<Value>, Problem> {
    let ids = session_ids(&request.user_id, &request.session_id)?;
    let container_id = state.core.reset(&ids).await?;
    Ok(Json(
        json!({"status": "success", "output": "Kernel reset.\n", "container_id": container_id}),
    ))
}

pub async fn interrupt(
    State(state): State<Shared>,
    JsonBody(request): JsonBody<SessionRequest>,
) -> Result<Json<Value>, Problem> {
    let ids = session_ids(&request.user_id, &request.session_id)?;
    let (status, kept) = match state.core.interrupt(&ids).await {
        Some(kept) => ("interrupted", kept),
        None => ("idle", VariableState::Kept),
    };
    Ok(Json(json!({"status": status, "state": kept})))
}

pub async fn stop(
    State(state): State<Shared>,
    JsonBody(request): JsonBody<SessionRequest>,
) -> Result<Json<Value>, Problem> {
    let ids = session_ids(&request.user_id, &request.session_id)?;
    let deleted = state.core.stop(&ids).await?;
    let mut counts = json!({"container": deleted.container, "workspace": deleted.workspace, "objects": deleted.objects});
    if deleted.objects_pending {
        counts["objects_pending"] = json!(true);
    }
    Ok(Json(json!({"status": "success", "deleted": counts})))
}

pub async fn status(
    State(state): State<Shared>,
    QueryOf(query): QueryOf<SessionRequest>,
) -> Result<Json<Value>, Problem> {
    let ids = session_ids(&query.user_id, &query.session_id)?;
    Ok(Json(to_json(&state.core.status(&ids).await?)))
}

pub async fn list(State(state): State<Shared>) -> Json<Value> {
    let statuses = state.core.statuses().await;
    let sandboxes: Vec<Value> = statuses.iter().map(to_json).collect();
    Json(json!({"sandboxes": sandboxes}))
}

fn to_json(status: &SessionStatus) -> Value {
    json!({
        "user_id": status.ids.user_id(),
        "session_id": status.ids.session_id(),
        "state": status.state,
        "container_id": status.container_id,
        "backend": status.backend,
        "created_at": timestamp(status.created_ms),
        "last_activity_at": timestamp(status.last_activity_ms),
        "expires_at": timestamp(status.expires_ms),
        "queued_cells": status.queued_cells,
        "kernel_answers": status.kernel_answers,
        "memory_bytes": status.memory_bytes,
        "cpu_seconds": status.cpu_seconds,
        "files": status.files,
        "bytes": status.size_bytes,
        "workspace_quota": status.quota,
    })
}

fn timestamp(unix_ms: u64) -> Option<String> {
    let moment = OffsetDateTime::from_unix_timestamp_nanos(i128::from(unix_ms) * 1_000_000).ok()?;
    moment.format(&Rfc3339).ok()
}
