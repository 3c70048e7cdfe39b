//! `POST /v1/files/upload`: multipart, streamed to disk part by part.
//! Never holds a file in memory. Invariant: a file is acknowledged only when it is whole, on disk, under its name.

use axum::Json;
use axum::extract::multipart::{Field, Multipart};
use axum::extract::{FromRequest, Request, State};
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::api::Shared;
use crate::api::input::{folder, session_ids};
use crate::api::problem::Problem;
use crate::model::ids::SessionIds;
use crate::model::path::WorkspacePath;

const MAX_TEXT_FIELD_BYTES: usize = 4096;
const MAX_FILES: usize = 200;

/// The text fields, which come before the files.
#[derive(Default)]
struct Form {
    user_id: Option<String>,
    session_id: Option<String>,
    dest_dir: Option<String>,
}

pub async fn upload(State(state): State<Shared>, request: Request) -> Result<Json<Value>, Problem> {
    let multipart = Multipart::from_request(request, &state).await;
    let mut multipart = multipart.map_err(|error| {
        Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "invalid_argument",
            format!("the body must be multipart/form-data: {error}"),
        )
    })?;
    let mut form = Form::default();
    let mut uploaded = Vec::new();
    while let Some(mut field) = multipart.next_field().await.map_err(broken_body)? {
        let name = field.name().unwrap_or_default().to_owned();
        if field.file_name().is_none() {
            form.take(&name, text(&mut field, &name).await?)?;
            continue;
        }
        if uploaded.len() == MAX_FILES {
            return Err(Problem::invalid(
                "file",
                format!("file: at most {MAX_FILES} files at once"),
            ));
        }
        let (ids, dest_dir) = form.target()?;
        let path = take_file(&state, &ids, dest_dir.as_ref(), field).await?;
        uploaded.push(path.to_text());
    }
    form.target()?;
    if uploaded.is_empty() {
        return Err(Problem::invalid(
            "file",
            "file: no file in the form; add a part with a file name",
        ));
    }
    Ok(Json(json!({"status": "success", "uploaded": uploaded})))
}

async fn take_file(
    state: &Shared,
    ids: &SessionIds,
    dest_dir: Option<&WorkspacePath>,
    mut field: Field<'_>,
) -> Result<WorkspacePath, Problem> {
    let name = file_name(field.file_name().unwrap_or_default())?;
    let path = WorkspacePath::in_folder(dest_dir, name.file_name());
    let path = path.map_err(|error| Problem::invalid("file", format!("file: {error}")))?;
    let mut upload = state.core.begin_upload(ids, path).await?;
    while let Some(chunk) = field.chunk().await.map_err(broken_body)? {
        upload.write(&chunk)?;
    }
    Ok(state.core.finish_upload(upload).await?)
}

/// The last part of what the client calls the file; some send a whole path.
pub(in crate::api) fn file_name(given: &str) -> Result<WorkspacePath, Problem> {
    let name = given.rsplit(['/', '\\']).next().unwrap_or_default();
    WorkspacePath::from_bytes(name.as_bytes().to_vec())
        .map_err(|error| Problem::invalid("file", format!("file: the name {given:?} {error}")))
}

impl Form {
    fn take(&mut self, name: &str, value: String) -> Result<(), Problem> {
        let place = match name {
            "user_id" => &mut self.user_id,
            "session_id" => &mut self.session_id,
            "dest_dir" => &mut self.dest_dir,
            "file" => return Err(Problem::invalid("file", "file: the part has no file name")),
            _ => return Ok(()),
        };
        if place.replace(value).is_some() {
            return Err(Problem::invalid(
                name,
                format!("{name} is given more than once"),
            ));
        }
        Ok(())
    }

    fn target(&self) -> Result<(SessionIds, Option<WorkspacePath>), Problem> {
        let required = |field: &'static str, value: &Option<String>| {
            value.clone().ok_or_else(|| {
                Problem::invalid(field, format!("{field}: missing; send it before the files"))
            })
        };
        let user_id = required("user_id", &self.user_id)?;
        let session_id = required("session_id", &self.session_id)?;
        Ok((
            session_ids(&user_id, &session_id)?,
            folder("dest_dir", self.dest_dir.as_deref())?,
        ))
    }
}

pub(in crate::api) async fn text(field: &mut Field<'_>, name: &str) -> Result<String, Problem> {
    let mut bytes = Vec::new();
    while let Some(chunk) = field.chunk().await.map_err(broken_body)? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > MAX_TEXT_FIELD_BYTES {
            return Err(Problem::invalid(
                name,
                format!("{name} is longer than {MAX_TEXT_FIELD_BYTES} bytes"),
            ));
        }
    }
    String::from_utf8(bytes).map_err(|_| Problem::invalid(name, format!("{name} is not UTF-8")))
}

pub(in crate::api) fn broken_body(error: axum::extract::multipart::MultipartError) -> Problem {
    Problem::invalid(
        "body",
        format!("the multipart body is broken: {}", error.body_text()),
    )
}
