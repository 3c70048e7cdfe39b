//! `run_python` and `get_file_link`: the REPL of a client's session, and its files for people.
//! Never sends a large picture: it becomes a file with a link. Invariant: what is said of variables and files is what the core said.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{CallToolResult, ContentBlock};
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::api::Shared;
use crate::api::input::workspace_path;
use crate::api::problem::Problem;
use crate::api::tools::{Context, read_input, session_of, within};
use crate::model::execution::{ExecuteCommand, ExecutionAnswer, ExecutionStatus, VariableState};
use crate::model::ids::SessionIds;
use crate::session::EventSink;
use crate::settings::{MAX_LINK_SECONDS, MAX_TIMEOUT};

/// Of base64; a model's context is no place for more.
const MAX_PICTURE_BYTES: usize = 75_000;
const PICTURES: [&str; 2] = ["image/png", "image/jpeg"];

#[derive(Deserialize)]
struct RunInput {
    code: String,
    timeout_seconds: Option<u64>,
}

pub async fn run(
    state: &Shared,
    context: &Context,
    input: Value,
    hang_up: CancellationToken,
) -> Result<CallToolResult, Problem> {
    let input: RunInput = read_input(input)?;
    let seconds = within(
        "timeout_seconds",
        input.timeout_seconds,
        1,
        MAX_TIMEOUT.as_secs(),
    )?;
    let ids = session_of(state, context).await?;
    let command = ExecuteCommand {
        code: input.code,
        inputs: Vec::new(),
        timeout: seconds.map_or(state.settings.sandbox.exec_timeout, Duration::from_secs),
        link_expires_in: state.settings.s3.presign_expires,
    };
    let events = EventSink::new(None, hang_up);
    let answer = state.core.execute(&ids, command, events).await?;
    let mut content = vec![ContentBlock::text(text_of(&answer))];
    content.extend(pictures(state, &ids, &answer).await?);
    Ok(match answer.status {
        ExecutionStatus::Ok => CallToolResult::success(content),
        _ => CallToolResult::error(content),
    })
}

/// What a person at the REPL would have seen, then what became of files and variables.
fn text_of(answer: &ExecutionAnswer) -> String {
    let mut text = answer.output.clone();
    if text.is_empty() {
        text.push_str("(no output)\n");
    }
    for artifact in &answer.artifacts {
        text.push_str(&format!(
            "[file {} ({} bytes): get_file_link gives a link to it]\n",
            artifact.path, artifact.size_bytes
        ));
    }
    for skipped in &answer.sync.skipped {
        text.push_str(&format!(
            "[file {} was not stored: {}]\n",
            skipped.path, skipped.reason
        ));
    }
    if answer.state == VariableState::Lost && answer.status != ExecutionStatus::Died {
        text.push_str("[the variables of earlier calls were lost; files are kept]\n");
    }
    text
}

/// Small pictures as they are, large ones as files of the session with a link.
async fn pictures(
    state: &Shared,
    ids: &SessionIds,
    answer: &ExecutionAnswer,
) -> Result<Vec<ContentBlock>, Problem> {
    let mut blocks = Vec::new();
    for (index, bundle) in answer.results.iter().enumerate() {
        let Some((mime, data)) = PICTURES
            .iter()
            .find_map(|mime| Some((*mime, bundle.get(*mime)?)))
        else {
            continue;
        };
        if data.len() <= MAX_PICTURE_BYTES {
            blocks.push(ContentBlock::image(data.clone(), mime));
            continue;
        }
        let bytes = STANDARD.decode(data.trim()).unwrap_or_default();
        let extension = mime.strip_prefix("image/").unwrap_or("png");
        let name = format!(
            "figures/figure-{}-{}.{extension}",
            answer.execution_count,
            index + 1
        );
        let path = workspace_path("path", &name)?;
        state
            .core
            .write_file(ids, &path, &bytes, 0o644, true)
            .await?;
        let link = state
            .core
            .download_link(ids, &path, state.settings.s3.presign_expires)
            .await?;
        blocks.push(ContentBlock::text(format!(
            "[a picture of {} bytes, too large to show here, is in {name}: {link}]",
            bytes.len()
        )));
    }
    Ok(blocks)
}

#[derive(Deserialize)]
struct LinkInput {
    path: String,
    expires_in: Option<u64>,
}

pub async fn link(
    state: &Shared,
    context: &Context,
    input: Value,
) -> Result<CallToolResult, Problem> {
    let input: LinkInput = read_input(input)?;
    let path = workspace_path("path", &input.path)?;
    let seconds = within("expires_in", input.expires_in, 1, MAX_LINK_SECONDS)?;
    let expires_in = seconds.map_or(state.settings.s3.presign_expires, Duration::from_secs);
    let ids = session_of(state, context).await?;
    let link = state.core.download_link(&ids, &path, expires_in).await?;
    let text = format!("{link}\n[works for {} seconds]", expires_in.as_secs());
    Ok(CallToolResult::success(vec![ContentBlock::text(text)]))
}
