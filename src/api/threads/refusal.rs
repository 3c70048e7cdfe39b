//! Errors of the threads dialect: `{"error": …}` and what belongs to it.
//! Never sends the inside of an internal error. Invariant: the words that callers look for are always the same.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::api::problem::Problem;
use crate::session::CoreError;

pub struct Refusal {
    status: StatusCode,
    body: Value,
    retry_after: bool,
}

impl Refusal {
    pub fn new(status: StatusCode, body: Value) -> Self {
        Self {
            status,
            body,
            retry_after: false,
        }
    }

    pub fn bad_request(text: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, json!({ "error": text }))
    }

    pub fn no_session(session_id: &str) -> Self {
        let body = json!({"error": "Invalid or expired session", "session_id": session_id});
        Self::new(StatusCode::NOT_FOUND, body)
    }

    /// Of a command on a session that may have gone just now.
    pub fn of_session(error: CoreError, session_id: &str) -> Self {
        match error {
            CoreError::NotFound(_) => Self::no_session(session_id),
            other => other.into(),
        }
    }

    /// No room for another session is 503 in this dialect.
    pub fn no_room(error: CoreError) -> Self {
        match error {
            CoreError::Capacity { .. } => Self {
                status: StatusCode::SERVICE_UNAVAILABLE,
                body: json!({ "error": error.to_string() }),
                retry_after: true,
            },
            other => other.into(),
        }
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self::new(problem.status(), json!({ "error": problem.detail() }))
    }
}

impl From<CoreError> for Refusal {
    fn from(error: CoreError) -> Self {
        Problem::from(error).into()
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body)).into_response();
        if self.retry_after {
            let seconds = axum::http::HeaderValue::from_static("10");
            response
                .headers_mut()
                .insert(axum::http::header::RETRY_AFTER, seconds);
        }
        response
    }
}
