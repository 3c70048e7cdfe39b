//! The sessions dialect: a session is created, gets steps of bash or Python, and is closed.
//! Never creates a session by using it. Invariant: a step goes to the sandbox that it names, or nowhere.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::finish_anyway::FinishAnyway;
use super::input::{JsonBody, MAX_JSON_BYTES, PathPart, read_body};
use super::problem::Problem;
use crate::model::execution::{ExecuteCommand, ExecutionAnswer, ExecutionStatus};
use crate::model::ids::SessionIds;
use crate::model::process::{ProcessAnswer, ProcessCommand};
use crate::session::{CoreError, EventSink, Terms};

const DIALECT: &str = "sessions";

/// Errors of this dialect: a status and one text.
pub struct Refusal(Problem);

impl Refusal {
    fn unprocessable(text: &str) -> Self {
        Self(Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid_argument",
            text,
        ))
    }

    fn not_found(text: &str) -> Self {
        Self(Problem::new(StatusCode::NOT_FOUND, "not_found", text))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        // A body that is not what it should be is 422 in this dialect.
        let status = match self.0.status() {
            StatusCode::BAD_REQUEST | StatusCode::UNSUPPORTED_MEDIA_TYPE => {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            other => other,
        };
        let body = json!({ "detail": self.0.detail() });
        self.0.in_another_shape(status, body)
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl From<CoreError> for Refusal {
    fn from(error: CoreError) -> Self {
        Problem::from(error).into()
    }
}

/// `POST /sessions`. The body, if there is one, says nothing, and is no longer than others.
pub async fn create(State(state): State<Shared>, request: Request) -> Result<Json<Value>, Refusal> {
    read_body(request.into_body(), MAX_JSON_BYTES).await?;
    let session_id = uuid::Uuid::new_v4().to_string();
    let ids = ids_of(&session_id)?;
    state.core.create(&ids, Terms::default()).await?;
    tracing::info!(
        event = "session_created",
        dialect = DIALECT,
        session_id,
        "session_created"
    );
    Ok(Json(json!({ "session_id": session_id })))
}

/// `DELETE /sessions/{id}`.
pub async fn close(
    State(state): State<Shared>,
    path: Result<PathPart, Problem>,
) -> Result<StatusCode, Refusal> {
    let PathPart(session_id) = path?;
    let ids = open_ids(&state, &session_id)?;
    state.core.stop(&ids).await?;
    tracing::info!(
        event = "session_closed",
        dialect = DIALECT,
        session_id,
        "session_closed"
    );
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
pub struct StepRequest {
    sandbox_id: String,
    #[serde(rename = "type")]
    kind: String,
    payload: Payload,
}

#[derive(Deserialize)]
struct Payload {
    cmd: Option<String>,
    code: Option<String>,
}

enum Step {
    Bash(String),
    Python(String),
}

impl StepRequest {
    fn step(self) -> Result<Step, Refusal> {
        let unprocessable = Refusal::unprocessable;
        match (self.kind.as_str(), self.payload.cmd, self.payload.code) {
            ("bash", Some(cmd), None) => Ok(Step::Bash(cmd)),
            ("python", None, Some(code)) => Ok(Step::Python(code)),
            ("bash", ..) => Err(unprocessable(
                "payload: a bash step has cmd and nothing else",
            )),
            ("python", ..) => Err(unprocessable(
                "payload: a python step has code and nothing else",
            )),
            (other, ..) => Err(unprocessable(&format!(
                "type: {other:?} is not known; use \"bash\" or \"python\""
            ))),
        }
    }
}

/// `POST /sessions/{id}/step`.
pub async fn step(
    State(state): State<Shared>,
    path: Result<PathPart, Problem>,
    body: Result<JsonBody<StepRequest>, Problem>,
) -> Result<Json<Value>, Refusal> {
    let PathPart(session_id) = path?;
    let JsonBody(request) = body?;
    if request.sandbox_id != session_id {
        let text = "sandbox_id: it is not the id in the path; a step names its sandbox twice, the same way";
        return Err(Refusal::unprocessable(text));
    }
    let ids = open_ids(&state, &session_id)?;
    let kind = request.kind.clone();
    let step = request.step()?;
    tracing::info!(
        event = "step_received",
        dialect = DIALECT,
        session_id,
        kind,
        "step_received"
    );
    let hang_up = CancellationToken::new();
    let guard = hang_up.clone().drop_guard();
    let sink = EventSink::new(None, hang_up);
    let work = run(state, ids, step, sink, session_id, kind);
    let answer = FinishAnyway::new(work).await?;
    drop(guard);
    Ok(Json(answer))
}

async fn run(
    state: Shared,
    ids: SessionIds,
    step: Step,
    sink: EventSink,
    session_id: String,
    kind: String,
) -> Result<Value, Refusal> {
    tracing::info!(
        event = "step_started",
        dialect = DIALECT,
        session_id,
        kind,
        "step_started"
    );
    let limit = state.settings.dialects.step_timeout;
    let outcome = match step {
        Step::Bash(cmd) => {
            let command = ProcessCommand::bash(&cmd, limit);
            state
                .core
                .run_process(&ids, command, sink)
                .await
                .map(|answer| of_process(&answer))
        }
        Step::Python(code) => {
            let command = ExecuteCommand {
                code,
                inputs: Vec::new(),
                timeout: limit,
                link_expires_in: state.settings.s3.presign_expires,
            };
            state
                .core
                .execute(&ids, command, sink)
                .await
                .map(|answer| of_execution(&answer))
        }
    };
    match &outcome {
        Ok(answer) => {
            let exit_code = answer["exit_code"].as_i64();
            tracing::info!(
                event = "step_finished",
                dialect = DIALECT,
                session_id,
                kind,
                exit_code,
                "step_finished"
            );
        }
        Err(error) => {
            tracing::warn!(event = "execution_failed", dialect = DIALECT, session_id, kind, %error, "execution_failed");
        }
    }
    Ok(outcome?)
}

fn of_process(answer: &ProcessAnswer) -> Value {
    json!({"output": answer.stdout, "error": answer.stderr_with_note(), "exit_code": answer.exit_code()})
}

/// A cell as a script would have ended: its exit code, and on stderr its traceback.
fn of_execution(answer: &ExecutionAnswer) -> Value {
    let mut error = answer.stderr.clone();
    if let Some(raised) = &answer.error {
        if !error.is_empty() && !error.ends_with('\n') {
            error.push('\n');
        }
        let exits = raised.name == "SystemExit";
        let text = match raised.traceback.is_empty() {
            true => format!("{}: {}\n", raised.name, raised.value),
            false => raised.traceback.clone(),
        };
        match exits {
            false => error.push_str(&text),
            true if exit_value(&raised.value).is_none() => {
                error.push_str(&format!("{}\n", raised.value));
            }
            true => {}
        }
        if answer.status == ExecutionStatus::Timeout {
            error.push_str(&format!("{}\n", raised.value));
        }
    }
    json!({"output": answer.stdout, "error": error, "exit_code": exit_code(answer)})
}

fn exit_code(answer: &ExecutionAnswer) -> i64 {
    match (answer.status, &answer.error) {
        (ExecutionStatus::Ok, _) => 0,
        (ExecutionStatus::Timeout, _) => 124,
        (ExecutionStatus::Interrupted, _) => 130,
        (ExecutionStatus::Died, _) => 137,
        (ExecutionStatus::Error, Some(error)) if error.name == "SystemExit" => {
            exit_value(&error.value).unwrap_or(1)
        }
        (ExecutionStatus::Error, _) => 1,
    }
}

/// What `sys.exit` was given as an exit code; none if it was a text, which a script prints.
fn exit_value(value: &str) -> Option<i64> {
    match value {
        "" | "None" => Some(0),
        number => number.parse::<i64>().ok().map(|number| number & 0xff),
    }
}

fn ids_of(session_id: &str) -> Result<SessionIds, Refusal> {
    SessionIds::of_dialect(DIALECT, "session_id", session_id)
        .map_err(|_| Refusal::not_found("no such session"))
}

/// The ids of a session that is there.
fn open_ids(state: &Shared, session_id: &str) -> Result<SessionIds, Refusal> {
    let ids = ids_of(session_id)?;
    match state.core.find_open(&ids) {
        Some(_) => Ok(ids),
        None => Err(Refusal::not_found(&format!(
            "session {session_id:?} is unknown or closed"
        ))),
    }
}
