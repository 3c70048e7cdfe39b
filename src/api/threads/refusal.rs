//! Errors of the threads dialect: `{"error": …}` and what belongs to it.
//! Never sends the inside of an internal error. Invariant: the words that callers look for are always the same.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::api::problem::Problem;
use crate::session::CoreError;

pub struct Refusal {
    status: StatusCode,
    problem: Box<Problem>,
    body: Value,
}

impl Refusal {
    /// The same problem in this dialect's own words.
    pub fn new(problem: Problem, body: Value) -> Self {
        Self {
            status: problem.status(),
            problem: Box::new(problem),
            body,
        }
    }

    pub fn bad_request(text: String) -> Self {
        Problem::new(StatusCode::BAD_REQUEST, "invalid_argument", text).into()
    }

    pub fn not_found(body: Value) -> Self {
        let problem = Problem::new(StatusCode::NOT_FOUND, "not_found", "not found");
        Self::new(problem, body)
    }

    pub fn no_session(session_id: &str) -> Self {
        Self::not_found(json!({"error": "Invalid or expired session", "session_id": session_id}))
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
        let has_no_room = matches!(error, CoreError::Capacity { .. });
        let mut refusal = Self::from(error);
        if has_no_room {
            refusal.status = StatusCode::SERVICE_UNAVAILABLE;
        }
        refusal
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        let body = json!({ "error": problem.detail() });
        Self::new(problem, body)
    }
}

impl From<CoreError> for Refusal {
    fn from(error: CoreError) -> Self {
        Problem::from(error).into()
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        self.problem.in_another_shape(self.status, self.body)
    }
}
