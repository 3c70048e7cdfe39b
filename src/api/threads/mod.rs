//! The threads dialect: one sandbox per conversation, for commands of bash, under a command policy.
//! Never creates a session by using it. Invariant: a live thread has one session, and a session id is never used twice.

pub mod files;
mod refusal;

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::finish_anyway::FinishAnyway;
use super::input::{JsonBody, QueryOf};
use super::problem::Problem;
use crate::model::ids::SessionIds;
use crate::model::process::ProcessCommand;
use crate::policy::Refused;
use crate::session::{Created, EventSink, SessionFacts, Terms};
use crate::settings::{MAX_THREAD_MINUTES, MAX_TIMEOUT};
use refusal::Refusal;

const DIALECT: &str = "threads";
const WORKSPACE: &str = "/workspace";
const USER: &str = "sandboxuser";
const DEFAULT_TIMEOUT_SECS: f64 = 30.0;

#[derive(Deserialize)]
pub struct CreateRequest {
    user_id: String,
    thread_id: String,
    timeout_minutes: Option<u64>,
}

/// `POST /create_session`.
pub async fn create_session(
    State(state): State<Shared>,
    body: Result<JsonBody<CreateRequest>, Problem>,
) -> Result<Response, Refusal> {
    let JsonBody(request) = body?;
    let ids = ids_of(&request.thread_id)?;
    // For logs only, but it must be fit for them.
    SessionIds::of_dialect(DIALECT, "user_id", &request.user_id)
        .map_err(|error| Refusal::bad_request(error.to_string()))?;
    let minutes = request
        .timeout_minutes
        .unwrap_or(state.settings.dialects.thread_timeout_minutes);
    if !(1..=MAX_THREAD_MINUTES).contains(&minutes) {
        return Err(Refusal::bad_request(format!(
            "timeout_minutes: {minutes} is not between 1 and {MAX_THREAD_MINUTES}"
        )));
    }
    let session_id = uuid::Uuid::new_v4().to_string();
    let terms = Terms {
        handle: Some(session_id.clone()),
        idle_secs: Some(minutes * 60),
        user_id: Some(request.user_id.clone()),
        ..Terms::default()
    };
    let (user_id, thread_id) = (&request.user_id, &request.thread_id);
    match state
        .core
        .create(&ids, terms)
        .await
        .map_err(Refusal::no_room)?
    {
        Created::New(facts) => {
            tracing::info!(
                event = "session_created",
                dialect = DIALECT,
                user_id,
                thread_id,
                session_id,
                "session_created"
            );
            let expires_ms = facts.last_activity_ms + minutes * 60_000;
            let body = json!({"session_id": session_id, "thread_id": thread_id, "status": "created",
                "workspace_dir": WORKSPACE, "user": USER, "expires_at": rfc3339(expires_ms)});
            Ok(Json(body).into_response())
        }
        Created::Existing(facts) => {
            let session_id = handle(&facts);
            tracing::info!(
                event = "session_reused",
                dialect = DIALECT,
                user_id,
                thread_id,
                session_id,
                "session_reused"
            );
            let body = json!({"session_id": session_id, "thread_id": thread_id, "status": "existing", "workspace_dir": WORKSPACE,
                "created_at": rfc3339(facts.created_ms), "last_activity": rfc3339(facts.last_activity_ms)});
            Ok((StatusCode::CONFLICT, Json(body)).into_response())
        }
    }
}

#[derive(Deserialize)]
pub struct ThreadQuery {
    thread_id: String,
}

/// `GET /get_session`.
pub async fn get_session(
    State(state): State<Shared>,
    query: Result<QueryOf<ThreadQuery>, Problem>,
) -> Result<Json<Value>, Refusal> {
    let QueryOf(query) = query?;
    let ids = ids_of(&query.thread_id)?;
    let Some(facts) = state.core.find_open(&ids) else {
        let body =
            json!({"error": "no active session for this thread_id", "thread_id": query.thread_id});
        return Err(Refusal::not_found(body));
    };
    let files_count = state.core.count_files(&ids).await?;
    Ok(Json(
        json!({"session_id": handle(&facts), "thread_id": query.thread_id, "status": "active",
        "created_at": rfc3339(facts.created_ms), "last_activity": rfc3339(facts.last_activity_ms),
        "workspace_dir": WORKSPACE, "files_count": files_count}),
    ))
}

#[derive(Deserialize)]
pub struct ExecuteRequest {
    session_id: String,
    command: String,
    timeout: Option<f64>,
}

/// `POST /execute`.
pub async fn execute(
    State(state): State<Shared>,
    body: Result<JsonBody<ExecuteRequest>, Problem>,
) -> Result<Json<Value>, Refusal> {
    let JsonBody(request) = body?;
    let facts = find(&state, &request.session_id)?;
    let seconds = request.timeout.unwrap_or(DEFAULT_TIMEOUT_SECS);
    if !(seconds > 0.0 && seconds <= MAX_TIMEOUT.as_secs_f64()) {
        let max = MAX_TIMEOUT.as_secs();
        return Err(Refusal::bad_request(format!(
            "timeout: {seconds} is not between 0 and {max}"
        )));
    }
    check_policy(&state, &facts, &request.command).await?;
    let hang_up = CancellationToken::new();
    let guard = hang_up.clone().drop_guard();
    let command = ProcessCommand::bash(&request.command, Duration::from_secs_f64(seconds));
    let work = run(state, facts, command, EventSink::new(None, hang_up));
    let answer = FinishAnyway::new(work).await?;
    drop(guard);
    Ok(Json(answer))
}

async fn run(
    state: Shared,
    facts: SessionFacts,
    command: ProcessCommand,
    sink: EventSink,
) -> Result<Value, Refusal> {
    let answer = state.core.run_process(&facts.ids, command, sink).await;
    let answer = answer.map_err(|error| Refusal::of_session(error, handle(&facts)))?;
    let (exit_code, duration_ms) = (answer.exit_code(), answer.duration.as_millis() as u64);
    let event = if exit_code == 0 {
        "command_executed"
    } else {
        "command_failed"
    };
    tracing::info!(
        event,
        dialect = DIALECT,
        user_id = user(&facts),
        thread_id = facts.ids.session_id(),
        session_id = handle(&facts),
        exit_code,
        duration_ms,
        "{event}"
    );
    Ok(
        json!({"exit_code": exit_code, "stdout": answer.stdout, "stderr": answer.stderr_with_note(), "execution_time_ms": duration_ms}),
    )
}

/// A verdict is waited for, so it is done off the runtime's threads.
async fn check_policy(state: &Shared, facts: &SessionFacts, command: &str) -> Result<(), Refusal> {
    let Some(judge) = state.judge.clone() else {
        return Ok(());
    };
    let line = command.to_owned();
    let verdict = tokio::task::spawn_blocking(move || judge.check(&line)).await;
    let verdict = verdict.unwrap_or_else(|_| {
        Err(Refused {
            reason: "the command could not be looked at".to_owned(),
            word: None,
        })
    });
    let Err(refused) = verdict else {
        return Ok(());
    };
    tracing::info!(
        event = "validation_failed",
        dialect = DIALECT,
        user_id = user(facts),
        thread_id = facts.ids.session_id(),
        session_id = handle(facts),
        reason = refused.reason,
        "validation_failed"
    );
    let mut body = json!({"error": refused.reason, "command": command});
    if let Some(word) = refused.word {
        body["forbidden_pattern"] = json!(word);
    }
    Err(Refusal::new(
        Problem::invalid("command", refused.reason),
        body,
    ))
}

#[derive(Deserialize)]
pub struct SessionRequest {
    session_id: String,
}

/// `POST /cleanup`.
pub async fn cleanup(
    State(state): State<Shared>,
    body: Result<JsonBody<SessionRequest>, Problem>,
) -> Result<Json<Value>, Refusal> {
    let JsonBody(request) = body?;
    let facts = find(&state, &request.session_id)?;
    state.core.stop(&facts.ids).await?;
    Ok(Json(
        json!({"status": "cleaned_up", "session_id": request.session_id}),
    ))
}

/// The open session that this id was handed out for. Only use counts as activity, not a look-up.
fn find(state: &Shared, session_id: &str) -> Result<SessionFacts, Refusal> {
    let found = state.core.find_by_handle(DIALECT, session_id);
    found.ok_or_else(|| Refusal::no_session(session_id))
}

fn ids_of(thread_id: &str) -> Result<SessionIds, Refusal> {
    SessionIds::of_dialect(DIALECT, "thread_id", thread_id)
        .map_err(|error| Refusal::bad_request(error.to_string()))
}

fn handle(facts: &SessionFacts) -> &str {
    facts.terms.handle.as_deref().unwrap_or_default()
}

fn user(facts: &SessionFacts) -> &str {
    facts.terms.user_id.as_deref().unwrap_or_default()
}

fn rfc3339(unix_ms: u64) -> String {
    let moment =
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(unix_ms / 1000) * 1_000_000_000);
    moment
        .ok()
        .and_then(|moment| moment.format(&Rfc3339).ok())
        .unwrap_or_default()
}
