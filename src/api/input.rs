//! Reading bodies and queries into typed requests, with errors that name the field.
//! Never lets a body grow past its limit. Invariant: a handler sees a well-typed request or is not called.

use axum::body::{Body, HttpBody};
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use super::Shared;
use super::problem::Problem;
use crate::model::ids::SessionIds;
use crate::model::json_depth::is_deeper_than;
use crate::model::path::WorkspacePath;

/// Room for the longest code, escaped, and for 200 long URLs.
pub const MAX_JSON_BYTES: usize = 8 << 20;

const MAX_JSON_DEPTH: usize = 100;

/// A JSON body. The content type must say so: a web page cannot send that to us unasked.
pub struct JsonBody<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Shared> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _state: &Shared) -> Result<Self, Problem> {
        let content_type = request
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok());
        let is_json = content_type.is_some_and(|value| {
            let mime = value.split(';').next().unwrap_or_default().trim();
            mime.eq_ignore_ascii_case("application/json")
        });
        if !is_json {
            let detail = "the body must be JSON and say so: Content-Type: application/json";
            return Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "invalid_argument",
                detail,
            ));
        }
        let bytes = read_body(request.into_body(), MAX_JSON_BYTES).await?;
        // A parser that is bounded by itself still passes over fields that nobody asked for, however deep.
        if is_deeper_than(MAX_JSON_DEPTH, &bytes) {
            let detail = format!("the body is nested deeper than {MAX_JSON_DEPTH}");
            return Err(Problem::invalid("body", detail));
        }
        let mut deserializer = serde_json::Deserializer::from_slice(&bytes);
        let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
            let path = error.path().to_string();
            invalid_field(&path, &error.into_inner().to_string())
        })?;
        deserializer.end().map_err(|error| {
            Problem::invalid("body", format!("the body is not one JSON value: {error}"))
        })?;
        Ok(Self(value))
    }
}

pub async fn read_body(body: Body, limit: usize) -> Result<bytes::Bytes, Problem> {
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Problem::too_large(format!(
            "the body is larger than {limit} bytes"
        ))),
        Err(_) => Err(Problem::invalid("body", "the body ended early")),
    }
}

/// The one part of a path that a route leaves open.
pub struct PathPart(pub String);

impl<S: Send + Sync> FromRequestParts<S> for PathPart {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let part = Path::<String>::from_request_parts(parts, state).await;
        part.map(|Path(text)| Self(text))
            .map_err(|_| Problem::invalid("path", "the path is not UTF-8"))
    }
}

/// A JSON body that may be left out, its type too, if all that it can say has a default.
pub async fn json_or_nothing<T: DeserializeOwned + Default>(
    request: Request,
    state: &Shared,
) -> Result<T, Problem> {
    let says_nothing = !request.headers().contains_key(header::CONTENT_TYPE);
    if says_nothing && request.body().is_end_stream() {
        return Ok(T::default());
    }
    JsonBody::from_request(request, state)
        .await
        .map(|JsonBody(value)| value)
}

/// The query of a GET.
pub struct QueryOf<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<Shared> for QueryOf<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &Shared) -> Result<Self, Problem> {
        let pairs = url::form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes());
        let mut seen = serde_json::Map::new();
        for (name, value) in pairs {
            if seen
                .insert(name.clone().into_owned(), value.into_owned().into())
                .is_some()
            {
                return Err(Problem::invalid(
                    &name,
                    format!("{name} is given more than once"),
                ));
            }
        }
        // Through the same deserialiser as bodies, so that the same mistakes read the same.
        serde_path_to_error::deserialize(serde_json::Value::Object(seen))
            .map(Self)
            .map_err(|error| {
                let path = error.path().to_string();
                invalid_field(&path, &error.into_inner().to_string())
            })
    }
}

/// Serde names a missing field in its message, a wrong one in the path.
pub fn invalid_field(path: &str, message: &str) -> Problem {
    let missing = message
        .strip_prefix("missing field `")
        .and_then(|rest| rest.split('`').next());
    let field = match (missing, path) {
        (Some(name), "." | "") => name.to_owned(),
        (Some(name), path) => format!("{path}.{name}"),
        (None, "." | "" | "?") => "body".to_owned(),
        (None, path) => path.to_owned(),
    };
    let message = message.split(" at line ").next().unwrap_or(message);
    Problem::invalid(&field, format!("{field}: {message}"))
}

/// The ids every v1 request carries.
pub fn session_ids(user_id: &str, session_id: &str) -> Result<SessionIds, Problem> {
    SessionIds::parse(user_id, session_id)
        .map_err(|error| Problem::invalid(error.field, error.to_string()))
}

pub fn workspace_path(field: &str, text: &str) -> Result<WorkspacePath, Problem> {
    WorkspacePath::parse(text).map_err(|error| Problem::invalid(field, format!("{field}: {error}")))
}

pub fn folder(field: &str, text: Option<&str>) -> Result<Option<WorkspacePath>, Problem> {
    let parsed = text.map(WorkspacePath::parse_folder).transpose();
    parsed
        .map(Option::flatten)
        .map_err(|error| Problem::invalid(field, format!("{field}: {error}")))
}
