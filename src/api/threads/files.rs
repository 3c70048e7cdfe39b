//! Files of the threads dialect: in by multipart, out by name, listed with the newest first.
//! Never holds a file in memory. Invariant: what is over a limit is said with the limit and with what there was.

use axum::Json;
use axum::body::Body;
use axum::extract::multipart::{Field, Multipart};
use axum::extract::{FromRequest, Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::io::ReaderStream;

use super::refusal::Refusal;
use super::{DIALECT, WORKSPACE, find, handle, rfc3339, user};
use crate::api::Shared;
use crate::api::input::{JsonBody, QueryOf};
use crate::api::problem::Problem;
use crate::api::v1::upload::{broken_body, file_name, text};
use crate::model::path::WorkspacePath;
use crate::session::{CoreError, SessionFacts, Upload};
use crate::store::attachment_header;

/// Until a file's name is known.
const NAMELESS: &str = "upload";

/// `POST /upload_file`. The name may come before or after the file; the session must come before it.
pub async fn upload(State(state): State<Shared>, request: Request) -> Result<Json<Value>, Refusal> {
    let multipart = Multipart::from_request(request, &state).await;
    let mut multipart = multipart.map_err(|error| {
        Refusal::bad_request(format!("the body must be multipart/form-data: {error}"))
    })?;
    let (mut facts, mut name, mut taken) = (None, None, None::<Taken>);
    while let Some(mut field) = multipart.next_field().await.map_err(broken_body)? {
        match field.name().unwrap_or_default() {
            "session_id" => facts = Some(find(&state, &text(&mut field, "session_id").await?)?),
            "filename" => name = Some(text(&mut field, "filename").await?),
            "file" if taken.is_none() => {
                let Some(facts) = &facts else {
                    let text = "session_id: missing; send it before the file";
                    return Err(Refusal::bad_request(text.to_owned()));
                };
                taken = Some(take(&state, facts, name.as_deref(), field).await?);
            }
            "file" => return Err(Refusal::bad_request("file: one file at a time".to_owned())),
            _ => {}
        }
    }
    let Some(facts) = facts else {
        return Err(Refusal::bad_request("session_id: missing".to_owned()));
    };
    let Some(Taken {
        mut upload,
        own_name,
    }) = taken
    else {
        return Err(Refusal::bad_request("file: missing".to_owned()));
    };
    let name = match name {
        Some(name) => path(&name)?,
        None => own_name?,
    };
    if let Err(error) = upload.rename(name) {
        return Err(over_limit(&state, &facts, error, upload.written_bytes()).await);
    }
    let size_bytes = upload.written_bytes();
    let stored = state.core.finish_upload(upload).await;
    let stored = stored.map_err(|error| Refusal::of_session(error, handle(&facts)))?;
    let filename = stored.to_text();
    tracing::info!(
        event = "file_uploaded",
        dialect = DIALECT,
        user_id = user(&facts),
        thread_id = facts.ids.session_id(),
        session_id = handle(&facts),
        size_bytes,
        "file_uploaded"
    );
    Ok(Json(
        json!({"status": "uploaded", "filename": filename, "path": format!("{WORKSPACE}/{filename}"), "size_bytes": size_bytes}),
    ))
}

/// A file whose bytes are here, and the name that it came with, which counts if no other is given.
struct Taken {
    upload: Upload,
    own_name: Result<WorkspacePath, Problem>,
}

async fn take(
    state: &Shared,
    facts: &SessionFacts,
    given: Option<&str>,
    mut field: Field<'_>,
) -> Result<Taken, Refusal> {
    let own_name = file_name(field.file_name().unwrap_or_default());
    let begins_as = match (given, &own_name) {
        (Some(given), _) => path(given)?,
        (None, Ok(name)) => name.clone(),
        (None, Err(_)) => path(NAMELESS)?,
    };
    let max_bytes = state.settings.dialects.max_file_bytes;
    let mut upload = match state.core.begin_upload(&facts.ids, begins_as).await {
        Ok(upload) => upload.limited_to(max_bytes),
        Err(error) => return Err(over_limit(state, facts, error, 0).await),
    };
    let mut received = 0;
    while let Some(chunk) = field.chunk().await.map_err(broken_body)? {
        received += chunk.len() as u64;
        if let Err(error) = upload.write(&chunk) {
            // What is left is counted, not kept, so that the answer can say how large the file was.
            drop(upload);
            while let Some(chunk) = field.chunk().await.map_err(broken_body)? {
                received += chunk.len() as u64;
                if received > max_bytes.saturating_mul(4) {
                    break;
                }
            }
            return Err(over_limit(state, facts, error, received).await);
        }
    }
    Ok(Taken { upload, own_name })
}

/// The two limits of this dialect in its own words.
async fn over_limit(
    state: &Shared,
    facts: &SessionFacts,
    error: CoreError,
    received: u64,
) -> Refusal {
    let body = match &error {
        CoreError::TooLarge(_) => json!({"error": "File size exceeds maximum allowed size",
            "max_size_mb": megabytes(state.settings.dialects.max_file_bytes), "uploaded_size_mb": megabytes(received)}),
        CoreError::QuotaExceeded { .. } => {
            let limits = &state.settings.files;
            let (files, bytes) = state.core.workspace_use(&facts.ids).await.unwrap_or((0, 0));
            match files >= limits.max_total_files {
                true => {
                    json!({"error": "Workspace file count limit exceeded", "max_files": limits.max_total_files, "current_files": files})
                }
                false => {
                    json!({"error": "Workspace size limit exceeded", "max_workspace_mb": megabytes(limits.max_workspace_bytes),
                    "current_workspace_mb": megabytes(bytes), "file_size_mb": megabytes(received)})
                }
            }
        }
        _ => return Refusal::of_session(error, handle(facts)),
    };
    tracing::info!(event = "resource_limit_exceeded", dialect = DIALECT, user_id = user(facts), thread_id = facts.ids.session_id(), session_id = handle(facts), %error, "resource_limit_exceeded");
    Refusal::new(error.into(), body)
}

fn megabytes(bytes: u64) -> f64 {
    (bytes as f64 / f64::from(1 << 20) * 100.0).round() / 100.0
}

#[derive(Deserialize)]
pub struct DownloadRequest {
    session_id: String,
    filename: String,
}

/// `POST /download_file`.
pub async fn download(
    State(state): State<Shared>,
    body: Result<JsonBody<DownloadRequest>, Problem>,
) -> Result<Response, Refusal> {
    let JsonBody(request) = body?;
    let facts = find(&state, &request.session_id)?;
    let path = path(&request.filename)?;
    let download = match state.core.open_download(&facts.ids, &path).await {
        Err(CoreError::NotFound(_)) => {
            let body = json!({"error": "File not found in workspace", "filename": request.filename, "workspace_dir": WORKSPACE});
            return Err(Refusal::not_found(body));
        }
        opened => opened?,
    };
    let size_bytes = download.opened.facts.size_bytes;
    tracing::info!(
        event = "file_downloaded",
        dialect = DIALECT,
        user_id = user(&facts),
        thread_id = facts.ids.session_id(),
        session_id = handle(&facts),
        size_bytes,
        "file_downloaded"
    );
    // The file may grow while it is sent; the length that was promised is sent.
    let file =
        tokio::io::AsyncReadExt::take(tokio::fs::File::from_std(download.opened.file), size_bytes);
    let mut response =
        Body::from_stream(ReaderStream::with_capacity(file, 64 << 10)).into_response();
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(size_bytes));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    let disposition = HeaderValue::from_str(&attachment_header(path.file_name()));
    headers.insert(
        header::CONTENT_DISPOSITION,
        disposition.unwrap_or(HeaderValue::from_static("attachment")),
    );
    Ok(response)
}

#[derive(Deserialize)]
pub struct SessionQuery {
    session_id: String,
}

/// `GET /list_files`.
pub async fn list(
    State(state): State<Shared>,
    query: Result<QueryOf<SessionQuery>, Problem>,
) -> Result<Json<Value>, Refusal> {
    let QueryOf(query) = query?;
    let facts = find(&state, &query.session_id)?;
    let mut files = state.core.list_files(&facts.ids).await?;
    files.sort_by(|one, other| {
        other
            .mtime
            .total_cmp(&one.mtime)
            .then_with(|| one.path.cmp(&other.path))
    });
    let total_size_bytes: u64 = files.iter().map(|file| file.size_bytes).sum();
    let listed: Vec<Value> = files
        .iter()
        .map(|file| {
            let modified = rfc3339((file.mtime.max(0.0) * 1000.0) as u64);
            json!({"name": file.path, "size_bytes": file.size_bytes, "modified": modified, "permissions": permissions(file.mode)})
        })
        .collect();
    Ok(Json(
        json!({"session_id": query.session_id, "workspace_dir": WORKSPACE, "files": listed,
        "total_files": files.len(), "total_size_bytes": total_size_bytes}),
    ))
}

/// As `ls -l` writes it; everything listed is a regular file.
fn permissions(mode: u32) -> String {
    let mut text = String::from("-");
    for shift in [6, 3, 0] {
        for (bit, letter) in [(4, 'r'), (2, 'w'), (1, 'x')] {
            text.push(if mode >> shift & bit != 0 {
                letter
            } else {
                '-'
            });
        }
    }
    text
}

fn path(text: &str) -> Result<WorkspacePath, Refusal> {
    WorkspacePath::parse(text).map_err(|error| Refusal::bad_request(format!("filename: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_read_as_ls_writes_them() {
        assert_eq!(permissions(0o100_644), "-rw-r--r--");
        assert_eq!(permissions(0o755), "-rwxr-xr-x");
        assert_eq!(permissions(0), "----------");
    }
}
