//! Files by name: taken in from URLs, listed, linked, deleted.
//! Never touches bytes itself. Invariant: one bad URL does not spoil the others.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use super::execute::link_lifetime;
use super::sandbox::SessionRequest;
use crate::api::Shared;
use crate::api::input::{JsonBody, QueryOf, folder, session_ids, workspace_path};
use crate::api::problem::Problem;

const MAX_URLS: usize = 200;
const MAX_DELETES: usize = 1000;

#[derive(Deserialize)]
pub struct UploadUrlsRequest {
    user_id: String,
    session_id: String,
    urls: Vec<String>,
    dest_dir: Option<String>,
}

pub async fn upload_urls(
    State(state): State<Shared>,
    JsonBody(request): JsonBody<UploadUrlsRequest>,
) -> Result<Json<Value>, Problem> {
    let ids = session_ids(&request.user_id, &request.session_id)?;
    let dest_dir = folder("dest_dir", request.dest_dir.as_deref())?;
    if !(1..=MAX_URLS).contains(&request.urls.len()) {
        return Err(Problem::invalid(
            "urls",
            format!("urls: give 1 to {MAX_URLS}, not {}", request.urls.len()),
        ));
    }
    let report = state
        .core
        .ingest_urls(&ids, &request.urls, dest_dir.as_ref())
        .await?;
    let status = match (report.uploaded.is_empty(), report.errors.is_empty()) {
        (_, true) => "success",
        (false, false) => "partial_success",
        (true, false) => "error",
    };
    let errors: Vec<Value> = report
        .errors
        .iter()
        .map(|(url, error)| json!({"source_url": url, "error": error}))
        .collect();
    Ok(Json(
        json!({"status": status, "uploaded": report.uploaded, "errors": errors}),
    ))
}

#[derive(Deserialize)]
pub struct DeleteRequest {
    user_id: String,
    session_id: String,
    paths: Vec<String>,
}

pub async fn delete(
    State(state): State<Shared>,
    JsonBody(request): JsonBody<DeleteRequest>,
) -> Result<Json<Value>, Problem> {
    let ids = session_ids(&request.user_id, &request.session_id)?;
    if !(1..=MAX_DELETES).contains(&request.paths.len()) {
        return Err(Problem::invalid(
            "paths",
            format!(
                "paths: give 1 to {MAX_DELETES}, not {}",
                request.paths.len()
            ),
        ));
    }
    let paths: Vec<_> = request
        .paths
        .iter()
        .map(|path| workspace_path("paths", path))
        .collect::<Result<_, _>>()?;
    let deleted = state.core.delete_files(&ids, &paths).await?;
    let deleted: Vec<String> = deleted.iter().map(|path| path.to_text()).collect();
    Ok(Json(json!({"status": "success", "deleted": deleted})))
}

pub async fn list(
    State(state): State<Shared>,
    QueryOf(query): QueryOf<SessionRequest>,
) -> Result<Json<Value>, Problem> {
    let ids = session_ids(&query.user_id, &query.session_id)?;
    Ok(Json(json!({"files": state.core.list_files(&ids).await?})))
}

#[derive(Deserialize)]
pub struct LinkQuery {
    user_id: String,
    session_id: String,
    path: String,
    expires_in: Option<String>,
}

pub async fn download_url(
    State(state): State<Shared>,
    QueryOf(query): QueryOf<LinkQuery>,
) -> Result<Json<Value>, Problem> {
    let ids = session_ids(&query.user_id, &query.session_id)?;
    let path = workspace_path("path", &query.path)?;
    let seconds = query.expires_in.map(|text| {
        text.parse::<u64>().map_err(|_| {
            Problem::invalid(
                "expires_in",
                format!("expires_in: {text:?} is not a whole number of seconds"),
            )
        })
    });
    let expires_in = link_lifetime(&state, "expires_in", seconds.transpose()?)?;
    let link = state.core.download_link(&ids, &path, expires_in).await?;
    Ok(Json(json!({
        "status": "success",
        "path": path.to_text(),
        "expires_in": expires_in.as_secs(),
        "download_url": link,
    })))
}
