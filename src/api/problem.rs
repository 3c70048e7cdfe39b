//! Errors as RFC 9457 problem documents, and the one table from core errors to status codes.
//! Never sends the inside of an internal error. Invariant: `code` is one of the words of the contract.

use axum::Json;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use crate::metrics::METRICS;
use crate::session::CoreError;

#[derive(Debug)]
pub struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    retry_after_seconds: Option<u64>,
    extra: Map<String, Value>,
}

impl Problem {
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status,
            code,
            detail: detail.into(),
            retry_after_seconds: None,
            extra: Map::new(),
        }
    }

    pub fn invalid(field: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_argument", detail).with("field", field)
    }

    pub fn too_large(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail)
    }

    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.extra.insert(name.to_owned(), value.into());
        self
    }

    fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_seconds = Some(seconds);
        self
    }

    pub fn status(&self) -> StatusCode {
        self.status
    }

    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// For a dialect that says errors in its own shape: what goes with every one of them, whatever it looks like.
    pub fn in_another_shape(&self, status: StatusCode, body: Value) -> Response {
        self.count();
        let mut response = (status, Json(body)).into_response();
        self.say_when_to_retry(response.headers_mut());
        response
    }

    pub fn count(&self) {
        METRICS.refusals.with_label_values(&[self.code]).inc();
    }

    fn say_when_to_retry(&self, headers: &mut HeaderMap) {
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
    }

    pub fn to_json(&self) -> Value {
        let mut document = json!({
            "type": format!("urn:cellblock:problem:{}", self.code),
            "title": self.status.canonical_reason().unwrap_or("Error"),
            "status": self.status.as_u16(),
            "detail": self.detail,
            "code": self.code,
        });
        if let Value::Object(fields) = &mut document {
            fields.extend(self.extra.clone());
        }
        document
    }
}

impl From<CoreError> for Problem {
    fn from(error: CoreError) -> Self {
        let detail = error.to_string();
        match error {
            CoreError::InvalidArgument { field, .. } => Self::invalid(&field, detail),
            CoreError::NotFound(_) => Self::new(StatusCode::NOT_FOUND, "not_found", detail),
            CoreError::Busy { .. } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "busy", detail).retry_after(1)
            }
            CoreError::Capacity { .. } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "capacity", detail).retry_after(10)
            }
            CoreError::TooLarge(_) => Self::too_large(detail),
            CoreError::QuotaExceeded { limit, current, .. } => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, "quota_exceeded", detail)
                    .with("limit", limit)
                    .with("current", current)
            }
            CoreError::Unavailable(_) | CoreError::Cancelled => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail).retry_after(5)
            }
            CoreError::Internal(cause) => {
                tracing::error!(?cause, "internal error");
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.in_another_shape(self.status, self.to_json());
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        response
    }
}

pub async fn no_such_route() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "not_found", "there is no such route")
}

pub async fn method_not_allowed() -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "invalid_argument",
        "this route does not take that method",
    )
}
