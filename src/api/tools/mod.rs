//! The tools dialect: sandboxes as tools that an agent calls, named by workflow, agent or user.
//! Never gives a request more than the operator allows. Invariant: a sandbox that was not opened is not there.

mod calls;
mod files;
mod request;
mod schemas;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::finish_anyway::FinishAnyway;
use super::input::{JsonBody, PathPart, json_or_nothing};
use super::problem::Problem;
use request::SandboxChoice;

pub use calls::{call as call_tool, find, read as read_input, session_of};
pub use request::{Context, within};
pub use schemas::all as all_tools;

const DIALECT: &str = "tools";
const MAX_RETAIN_SECONDS: u64 = 604_800;

#[derive(Deserialize)]
pub struct ListRequest {
    sandbox: Option<SandboxChoice>,
}

/// `POST /v1/tools`: the tools that a sandbox of this kind gives an agent, each with a JSON schema.
pub async fn list(
    State(state): State<Shared>,
    JsonBody(request): JsonBody<ListRequest>,
) -> Result<Json<Value>, Problem> {
    let sandbox = request.sandbox.unwrap_or_default().checked(&state)?;
    Ok(Json(json!({ "tools": schemas::of_mode(sandbox.mode) })))
}

#[derive(Deserialize)]
pub struct CallRequest {
    #[serde(default)]
    context: Context,
    #[serde(default)]
    input: Option<Value>,
}

/// `POST /v1/tools/{name}`.
pub async fn call(
    State(state): State<Shared>,
    PathPart(name): PathPart,
    JsonBody(request): JsonBody<CallRequest>,
) -> Result<Json<Value>, Problem> {
    let input = request.input.unwrap_or_else(|| json!({}));
    let hang_up = CancellationToken::new();
    let guard = hang_up.clone().drop_guard();
    // Finished whoever hangs up, so that a sandbox of a single run never stays; but a program nobody waits for is ended.
    let work = async move { call_tool(&state, &name, &request.context, input, hang_up).await };
    let answer = FinishAnyway::new(work).await?;
    drop(guard);
    Ok(Json(answer))
}

#[derive(Default, Deserialize)]
pub struct CompleteRequest {
    retain_seconds: Option<u64>,
}

/// `POST /v1/workflows/{run_id}/complete`: closes every session of the run, now or after it was left alone for a while.
pub async fn complete_workflow(
    State(state): State<Shared>,
    PathPart(run_id): PathPart,
    request: Request,
) -> Result<Json<Value>, Problem> {
    let request: CompleteRequest = json_or_nothing(request, &state).await?;
    let retain = request.retain_seconds.unwrap_or(0);
    if retain > MAX_RETAIN_SECONDS {
        return Err(Problem::invalid(
            "retain_seconds",
            format!("retain_seconds: {retain} is not between 0 and {MAX_RETAIN_SECONDS}"),
        ));
    }
    let sessions = state.core.sessions_of_workflow(&run_id);
    let mut failed = None;
    for session in &sessions {
        let done = match retain {
            0 => state.core.stop(&session.ids).await.map(|_| ()),
            seconds => state.core.retain(&session.ids, seconds),
        };
        failed = failed.or(done.err());
    }
    if let Some(error) = failed {
        return Err(error.into());
    }
    let field = if retain == 0 { "closed" } else { "retained" };
    Ok(Json(json!({ "ok": true, field: sessions.len() })))
}

fn no_such_tool(name: &str) -> Problem {
    let known = schemas::NAMES.join(", ");
    let detail = format!("there is no tool {name:?}; there are {known}");
    Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
}
