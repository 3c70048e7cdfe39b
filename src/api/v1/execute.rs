//! `POST /v1/execute`, as one JSON answer or as server-sent events.
//! Never ties an execution to its request: a caller that hangs up must not cut it in half.
//! Invariant: a stream ends with exactly one `done`, or with the problem that kept the cell from ending.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{FutureExt, Stream, StreamExt, stream};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::Instrument;

use crate::api::Shared;
use crate::api::finish_anyway::FinishAnyway;
use crate::api::input::{JsonBody, session_ids, workspace_path};
use crate::api::problem::Problem;
use crate::model::execution::{ExecuteCommand, ExecutionAnswer, ExecutionEvent};
use crate::model::ids::SessionIds;
use crate::session::{CoreError, EventSink};
use crate::settings::{MAX_LINK_SECONDS, MAX_TIMEOUT};

/// The longest cell.
const MAX_CODE_BYTES: usize = 500_000;
const MAX_INPUTS: usize = 1000;
/// A request that is refused is refused within this time, with a status; a stream begins after it at the latest.
const STREAM_START_WAIT: Duration = Duration::from_millis(250);

#[derive(Deserialize)]
pub struct ExecuteRequest {
    user_id: String,
    session_id: String,
    code: String,
    #[serde(default)]
    inputs: Option<Vec<String>>,
    presign_expires_in: Option<u64>,
    timeout_seconds: Option<f64>,
    stream: Option<bool>,
    detach: Option<bool>,
    language: Option<String>,
}

type Outcome = Result<ExecutionAnswer, Problem>;

pub async fn execute(
    State(state): State<Shared>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<ExecuteRequest>,
) -> Result<Response, Problem> {
    let ids = session_ids(&request.user_id, &request.session_id)?;
    let streamed = request.stream.unwrap_or_else(|| accepts_events(&headers));
    let hang_up = CancellationToken::new();
    let guard = (!request.detach.unwrap_or(false)).then(|| hang_up.clone().drop_guard());
    let command = command(&state, request)?;
    if streamed {
        return execute_as_events(state, ids, command, hang_up, guard).await;
    }
    let sink = EventSink::new(None, hang_up);
    let answer = FinishAnyway::new(run(state, ids, command, sink)).await?;
    drop(guard);
    Ok(Json(answer).into_response())
}

fn command(state: &Shared, request: ExecuteRequest) -> Result<ExecuteCommand, Problem> {
    if let Some(language) = request.language.filter(|language| language != "python") {
        return Err(Problem::invalid(
            "language",
            format!("language {language:?} is not supported; use \"python\""),
        ));
    }
    if request.code.len() > MAX_CODE_BYTES {
        return Err(
            Problem::too_large(format!("code is larger than {MAX_CODE_BYTES} bytes"))
                .with("field", "code"),
        );
    }
    let inputs = request.inputs.unwrap_or_default();
    if inputs.len() > MAX_INPUTS {
        return Err(Problem::invalid(
            "inputs",
            format!("inputs: at most {MAX_INPUTS} paths"),
        ));
    }
    let timeout = match request.timeout_seconds {
        None => state.settings.sandbox.exec_timeout,
        Some(seconds) if seconds > 0.0 && seconds <= MAX_TIMEOUT.as_secs_f64() => {
            Duration::from_secs_f64(seconds)
        }
        Some(seconds) => {
            let max = MAX_TIMEOUT.as_secs();
            return Err(Problem::invalid(
                "timeout_seconds",
                format!("timeout_seconds: {seconds} is not between 0 and {max}"),
            ));
        }
    };
    Ok(ExecuteCommand {
        code: request.code,
        inputs: inputs
            .iter()
            .map(|path| workspace_path("inputs", path))
            .collect::<Result<_, _>>()?,
        timeout,
        link_expires_in: link_lifetime(state, "presign_expires_in", request.presign_expires_in)?,
    })
}

pub(super) fn link_lifetime(
    state: &Shared,
    field: &str,
    seconds: Option<u64>,
) -> Result<Duration, Problem> {
    match seconds {
        None => Ok(state.settings.s3.presign_expires),
        Some(seconds @ 1..=MAX_LINK_SECONDS) => Ok(Duration::from_secs(seconds)),
        Some(seconds) => Err(Problem::invalid(
            field,
            format!("{field}: {seconds} is not between 1 and {MAX_LINK_SECONDS}"),
        )),
    }
}

fn accepts_events(headers: &HeaderMap) -> bool {
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/event-stream"))
}

async fn run(state: Shared, ids: SessionIds, command: ExecuteCommand, sink: EventSink) -> Outcome {
    let execution = state.core.execute(&ids, command, sink);
    match AssertUnwindSafe(execution).catch_unwind().await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(CoreError::internal(anyhow::anyhow!("an execution panicked")).into()),
    }
}

async fn execute_as_events(
    state: Shared,
    ids: SessionIds,
    command: ExecuteCommand,
    hang_up: CancellationToken,
    guard: Option<DropGuard>,
) -> Result<Response, Problem> {
    let (sender, mut events) = mpsc::unbounded_channel();
    let sink = EventSink::new(Some(sender), hang_up);
    let mut execution = tokio::spawn(run(state, ids, command, sink).in_current_span());
    let first = tokio::select! {
        biased;
        event = events.recv() => Some(event),
        () = tokio::time::sleep(STREAM_START_WAIT) => None,
    };
    // The end of events before the first: refused before it began, or a cell without output. Both are known now.
    let finished = match &first {
        Some(None) => Some(outcome((&mut execution).await)?),
        _ => None,
    };
    let first = first.flatten();
    let stream = event_stream(first, events, execution, finished, guard);
    Ok(Sse::new(stream)
        .keep_alive(KeepAlive::new().interval(Duration::from_secs(15)))
        .into_response())
}

/// A task that was neither cancelled nor panicked always has an outcome.
fn outcome(joined: Result<Outcome, JoinError>) -> Outcome {
    joined.unwrap_or_else(|error| Err(CoreError::internal(error).into()))
}

fn event_stream(
    first: Option<ExecutionEvent>,
    events: mpsc::UnboundedReceiver<ExecutionEvent>,
    execution: JoinHandle<Outcome>,
    finished: Option<ExecutionAnswer>,
    guard: Option<DropGuard>,
) -> impl Stream<Item = Result<Event, Infallible>> {
    // The channel closes when the execution is over, so what follows it is the end.
    let live = stream::unfold(events, |mut events| async move {
        events.recv().await.map(|event| (event, events))
    });
    let end = stream::once(async move {
        let answer = match finished {
            Some(answer) => Ok(answer),
            None => outcome(execution.await),
        };
        drop(guard);
        match answer {
            Ok(answer) => named("done", &answer),
            Err(problem) => named("error", &problem.to_json()),
        }
    });
    stream::iter(first)
        .chain(live)
        .map(|event| to_sse(&event))
        .chain(end)
        .map(Ok)
}

fn to_sse(event: &ExecutionEvent) -> Event {
    match event {
        ExecutionEvent::Stdout(text) => named("stdout", &json!({ "text": text })),
        ExecutionEvent::Stderr(text) => named("stderr", &json!({ "text": text })),
        ExecutionEvent::Display(bundle) => named("display", bundle),
        ExecutionEvent::Result(bundle) => named("result", bundle),
        ExecutionEvent::Error(error) => named("error", error),
    }
}

fn named(name: &str, data: &impl serde::Serialize) -> Event {
    let json = serde_json::to_string(data).expect("answers have only string keys");
    Event::default().event(name).data(json)
}
