//! The ten tools: each reads its input, asks the core, shapes its output.
//! Never keeps state of its own. Invariant: a tool answers for the sandbox that its input names, and for no other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::request::{Context, RUNTIMES, SandboxChoice, known_runtime, resolve, within};
use super::{DIALECT, files, no_such_tool};
use crate::api::AppState;
use crate::api::input::{folder, invalid_field, workspace_path};
use crate::api::problem::Problem;
use crate::kernel::StreamName;
use crate::model::ids::SessionIds;
use crate::model::process::{ProcessAnswer, ProcessCommand, ProcessEnd};
use crate::session::{CoreError, Created, EventSink, SessionFacts, Terms};
use crate::settings::MAX_TIMEOUT;

const WORKDIR: &str = "/workspace";
const DEFAULT_TIMEOUT_SECONDS: u64 = 120;
/// The longest argument of a program.
const MAX_ARGUMENT_BYTES: usize = 128 * 1024 - 1;
const MAX_FILES: usize = 200;
const DEFAULT_PIECES: u64 = 100;
pub const MAX_PIECES: u64 = 1000;

type Answer = Result<Value, Problem>;

/// `hang_up` tells that nobody waits for the answer any more.
pub async fn call(
    state: &Arc<AppState>,
    name: &str,
    context: &Context,
    input: Value,
    hang_up: CancellationToken,
) -> Answer {
    match name {
        "sandbox_run" => run(state, read(input)?, hang_up).await,
        "sandbox_open" => open(state, context, read(input)?).await,
        "sandbox_exec" => exec(state, read(input)?, hang_up).await,
        "sandbox_exec_read" => exec_read(state, read(input)?).await,
        "sandbox_exec_wait" => exec_wait(state, read(input)?, hang_up).await,
        "sandbox_fs_write" => files::write(state, read(input)?).await,
        "sandbox_fs_read" => files::read(state, read(input)?).await,
        "sandbox_fs_list" => files::list(state, read(input)?).await,
        "sandbox_fs_delete" => files::delete(state, read(input)?).await,
        "sandbox_close" => close(state, read(input)?).await,
        other => Err(no_such_tool(other)),
    }
}

pub fn read<T: DeserializeOwned>(input: Value) -> Result<T, Problem> {
    serde_path_to_error::deserialize(input).map_err(|error| {
        let path = error.path().to_string();
        let path = if path == "." {
            "input".to_owned()
        } else {
            format!("input.{path}")
        };
        invalid_field(&path, &error.into_inner().to_string())
    })
}

/// The open sandbox of this id.
pub fn find(state: &Arc<AppState>, sandbox_id: &str) -> Result<SessionFacts, Problem> {
    let found = state.core.find_by_handle(DIALECT, sandbox_id);
    found.ok_or_else(|| {
        let detail = format!("sandbox {sandbox_id:?} is unknown or closed; sandbox_open gives one");
        Problem::new(axum::http::StatusCode::NOT_FOUND, "not_found", detail)
    })
}

/// The caller's own session, opened if it is not.
pub async fn session_of(state: &Arc<AppState>, context: &Context) -> Result<SessionIds, Problem> {
    let (Created::New(facts) | Created::Existing(facts)) =
        open_session(state, context, OpenInput::default()).await?;
    Ok(facts.ids)
}

async fn open_session(
    state: &Arc<AppState>,
    context: &Context,
    input: OpenInput,
) -> Result<Created, Problem> {
    let sandbox = input.sandbox.unwrap_or_default().checked(state)?;
    let (ids, workflow) = resolve(context, input.session_key.as_deref(), &sandbox)?;
    let terms = Terms {
        handle: Some(format!("sbx_{}", uuid::Uuid::new_v4().simple())),
        user_id: context.user_id.clone(),
        workflow,
        ..sandbox.terms
    };
    let created = state.core.create(&ids, terms).await?;
    if let (Created::New(_), Some(runtime)) = (&created, &sandbox.runtime) {
        let has = runtimes_of(state, &ids).await;
        if !has.contains(&runtime.as_str()) {
            state.core.stop(&ids).await?;
            return Err(lacks("sandbox.runtime", runtime, &has));
        }
    }
    Ok(created)
}

#[derive(Default, Deserialize)]
struct OpenInput {
    session_key: Option<String>,
    sandbox: Option<SandboxChoice>,
}

async fn open(state: &Arc<AppState>, context: &Context, input: OpenInput) -> Answer {
    let (facts, created) = match open_session(state, context, input).await? {
        Created::New(facts) => (facts, true),
        Created::Existing(facts) => (facts, false),
    };
    let image = match state.core.backend().name() {
        "docker" => facts
            .terms
            .image
            .clone()
            .unwrap_or_else(|| state.settings.sandbox.docker.image.clone()),
        other => other.to_owned(),
    };
    Ok(
        json!({"sandbox_id": facts.terms.handle, "image": image, "workdir": WORKDIR, "created": created}),
    )
}

#[derive(Deserialize)]
struct ExecInput {
    sandbox_id: String,
    cmd: Vec<String>,
    cwd: Option<String>,
    env: Option<BTreeMap<String, String>>,
    timeout_seconds: Option<u64>,
    stream: Option<bool>,
}

async fn exec(state: &Arc<AppState>, input: ExecInput, hang_up: CancellationToken) -> Answer {
    let facts = find(state, &input.sandbox_id)?;
    if input.cmd.is_empty() || input.cmd[0].is_empty() {
        return Err(Problem::invalid(
            "input.cmd",
            "input.cmd: give a program and its arguments",
        ));
    }
    let command = ProcessCommand {
        argv: arguments("input.cmd", input.cmd)?,
        cwd: folder("input.cwd", input.cwd.as_deref())?,
        env: variables(input.env)?,
        timeout: timeout(input.timeout_seconds)?,
    };
    let limit = command.timeout;
    let in_background = input.stream.unwrap_or(false);
    let hang_up = (!in_background).then_some(hang_up);
    let exec_id = state
        .core
        .start_process(&facts.ids, command, hang_up)
        .await?;
    if in_background {
        return Ok(json!({"exec_id": exec_id, "status": "running"}));
    }
    // It ends by its own limit; a moment more is for its end to be told.
    let waited = limit + Duration::from_secs(30);
    let status = state
        .core
        .wait_process(&facts.ids, &exec_id, waited)
        .await?;
    Ok(match status.ended {
        None => json!({"exec_id": exec_id, "status": "running"}),
        Some(ended) => {
            json!({"exec_id": exec_id, "status": "completed", "exit_code": ended.exit_code(),
            "stdout": ended.stdout, "stderr": ended.stderr_with_note()})
        }
    })
}

#[derive(Deserialize)]
struct ReadInput {
    sandbox_id: String,
    exec_id: String,
    since_seq: Option<u64>,
    max_chunks: Option<u64>,
}

/// `since_seq` is the last piece that the caller has seen.
async fn exec_read(state: &Arc<AppState>, input: ReadInput) -> Answer {
    let facts = find(state, &input.sandbox_id)?;
    let most =
        within("input.max_chunks", input.max_chunks, 1, MAX_PIECES)?.unwrap_or(DEFAULT_PIECES);
    let since = input.since_seq.map_or(0, |seq| seq.saturating_add(1));
    let reading = state
        .core
        .read_process(&facts.ids, &input.exec_id, since, most as usize)
        .await?;
    let chunks: Vec<Value> = reading
        .pieces
        .iter()
        .map(|piece| {
            let stream = match piece.stream {
                StreamName::Stdout => "stdout",
                StreamName::Stderr => "stderr",
            };
            json!({"seq": piece.seq, "stream": stream, "text": piece.text})
        })
        .collect();
    Ok(json!({"chunks": chunks, "done": reading.done}))
}

#[derive(Deserialize)]
struct WaitInput {
    sandbox_id: String,
    exec_id: String,
    timeout_seconds: Option<u64>,
}

async fn exec_wait(state: &Arc<AppState>, input: WaitInput, hang_up: CancellationToken) -> Answer {
    let facts = find(state, &input.sandbox_id)?;
    let limit = timeout(input.timeout_seconds)?;
    let status = tokio::select! {
        status = state.core.wait_process(&facts.ids, &input.exec_id, limit) => status?,
        () = hang_up.cancelled() => return Err(CoreError::Cancelled.into()),
    };
    Ok(match status.ended {
        None => json!({"done": false}),
        Some(ended) => json!({"done": true, "exit_code": ended.exit_code()}),
    })
}

#[derive(Deserialize)]
struct CloseInput {
    sandbox_id: String,
    delete_workspace: Option<bool>,
}

/// The workspace goes with the sandbox; what is stored of it goes too unless DELETE_S3_ON_CLEANUP says otherwise.
async fn close(state: &Arc<AppState>, input: CloseInput) -> Answer {
    let facts = find(state, &input.sandbox_id)?;
    if input.delete_workspace == Some(false) {
        state.core.end_sandbox_only(&facts.ids).await?;
    } else {
        state.core.stop(&facts.ids).await?;
    }
    Ok(json!({"ok": true}))
}

#[derive(Deserialize)]
struct RunInput {
    runtime: Option<String>,
    code: String,
    args: Option<Vec<String>>,
    env: Option<BTreeMap<String, String>>,
    files: Option<BTreeMap<String, String>>,
    timeout_seconds: Option<u64>,
}

/// A sandbox for this one call, from the pool if there is one, gone when the answer is out.
async fn run(state: &Arc<AppState>, input: RunInput, hang_up: CancellationToken) -> Answer {
    let runtime = input.runtime.unwrap_or_else(|| "python".to_owned());
    known_runtime("input.runtime", &runtime)?;
    let mut argv = match runtime.as_str() {
        "python" => vec!["python3".to_owned(), "-c".to_owned(), input.code],
        "node" => vec![
            "node".to_owned(),
            "-e".to_owned(),
            input.code,
            "--".to_owned(),
        ],
        _ => vec![
            "bash".to_owned(),
            "-c".to_owned(),
            input.code,
            "bash".to_owned(),
        ],
    };
    argv.extend(input.args.unwrap_or_default());
    let command = ProcessCommand {
        argv: arguments("input.code", argv)?,
        cwd: None,
        env: variables(input.env)?,
        timeout: timeout(input.timeout_seconds)?,
    };
    let files = input.files.unwrap_or_default();
    if files.len() > MAX_FILES {
        return Err(Problem::invalid(
            "input.files",
            format!("input.files: at most {MAX_FILES}"),
        ));
    }
    let files = files
        .iter()
        .map(|(path, text)| Ok((workspace_path("input.files", path)?, text.as_bytes())))
        .collect::<Result<Vec<_>, Problem>>()?;
    let name = uuid::Uuid::new_v4().to_string();
    let ids = SessionIds::of_dialect_parts(DIALECT, "run", &[("run", &name)])
        .map_err(|error| Problem::invalid(error.field, error.to_string()))?;
    let terms = Terms {
        ephemeral: true,
        ..Terms::default()
    };
    state.core.create(&ids, terms).await?;
    let outcome = run_in(state, &ids, &files, command, hang_up).await;
    let (answer, has) = match outcome {
        Ok(answer) => {
            let has = match answer.end {
                ProcessEnd::NotStarted(_) => runtimes_of(state, &ids).await,
                _ => Vec::new(),
            };
            (Ok(answer), has)
        }
        Err(problem) => (Err(problem), Vec::new()),
    };
    if let Err(error) = state.core.stop(&ids).await {
        // The code has run and its answer counts; the reaper sees to the rest.
        tracing::warn!(%error, "the sandbox of a single run could not be removed yet");
    }
    let answer = answer?;
    if let ProcessEnd::NotStarted(reason) = &answer.end {
        return Err(match has.contains(&runtime.as_str()) {
            true => Problem::invalid("input", format!("input: {runtime} did not start: {reason}")),
            false => lacks("input.runtime", &runtime, &has),
        });
    }
    let exit_code = answer.exit_code();
    let mut body = json!({"ok": exit_code == 0, "runtime": runtime, "exit_code": exit_code,
        "duration_ms": answer.duration.as_millis() as u64, "stdout": answer.stdout, "stderr": answer.stderr});
    if let Some(note) = answer.note() {
        body["error"] = json!(note);
    }
    Ok(body)
}

async fn run_in(
    state: &Arc<AppState>,
    ids: &SessionIds,
    files: &[(crate::model::path::WorkspacePath, &[u8])],
    command: ProcessCommand,
    hang_up: CancellationToken,
) -> Result<ProcessAnswer, Problem> {
    for (path, bytes) in files {
        state.core.write_file(ids, path, bytes, 0o644, true).await?;
    }
    let events = EventSink::new(None, hang_up);
    Ok(state.core.run_process(ids, command, events).await?)
}

/// Which of the runtimes a sandbox has.
async fn runtimes_of(state: &Arc<AppState>, ids: &SessionIds) -> Vec<&'static str> {
    let mut found = Vec::new();
    for runtime in RUNTIMES {
        let program = if runtime == "python" {
            "python3"
        } else {
            runtime
        };
        let command = ProcessCommand {
            argv: vec![program.to_owned(), "--version".to_owned()],
            ..ProcessCommand::bash("", Duration::from_secs(10))
        };
        let events = EventSink::new(None, CancellationToken::new());
        let answer = state.core.run_process(ids, command, events).await;
        if answer.is_ok_and(|answer| answer.exit_code() == 0) {
            found.push(runtime);
        }
    }
    found
}

fn lacks(field: &str, runtime: &str, has: &[&str]) -> Problem {
    let has = has.join(", ");
    let detail = format!("{field}: this sandbox has no {runtime}; it has {has}");
    Problem::invalid(field, detail)
}

fn timeout(seconds: Option<u64>) -> Result<Duration, Problem> {
    let seconds = within("input.timeout_seconds", seconds, 1, MAX_TIMEOUT.as_secs())?;
    Ok(Duration::from_secs(
        seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS),
    ))
}

fn arguments(field: &str, argv: Vec<String>) -> Result<Vec<String>, Problem> {
    if argv.iter().any(|argument| argument.contains('\0')) {
        return Err(Problem::invalid(
            field,
            format!("{field}: contains a NUL character"),
        ));
    }
    let total: usize = argv.iter().map(String::len).sum();
    if argv
        .iter()
        .any(|argument| argument.len() > MAX_ARGUMENT_BYTES)
        || total > 4 * MAX_ARGUMENT_BYTES
    {
        let detail = format!(
            "{field}: an argument is longer than {MAX_ARGUMENT_BYTES} bytes; write a file and run that"
        );
        return Err(Problem::too_large(detail).with("field", field));
    }
    Ok(argv)
}

fn variables(env: Option<BTreeMap<String, String>>) -> Result<BTreeMap<String, String>, Problem> {
    let env = env.unwrap_or_default();
    let plain = |name: &String| !name.is_empty() && !name.contains(['=', '\0']);
    if env.len() > 200
        || !env.iter().all(|(name, value)| {
            plain(name) && !value.contains('\0') && value.len() <= MAX_ARGUMENT_BYTES
        })
    {
        return Err(Problem::invalid(
            "input.env",
            "input.env: at most 200 plain names with values",
        ));
    }
    Ok(env)
}
