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
use crate::api::tools::{Context, find, read_input, session_of, within};
use crate::model::execution::{
    ExecuteCommand, ExecutionAnswer, ExecutionStatus, MimeBundle, VariableState,
};
use crate::model::ids::SessionIds;
use crate::session::EventSink;
use crate::settings::{MAX_LINK_SECONDS, MAX_TIMEOUT};

/// Of base64, in one answer; a model's context is no place for more.
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
    content.extend(pictures(state, &ids, &answer).await);
    Ok(match answer.status {
        ExecutionStatus::Ok => CallToolResult::success(content),
        _ => CallToolResult::error(content),
    })
}

/// What a person at the REPL would have seen, then what became of files and variables.
fn text_of(answer: &ExecutionAnswer) -> String {
    let mut text = answer.output.clone();
    for shown in displayed(answer) {
        text.push_str(shown.trim_end());
        text.push('\n');
    }
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

/// The text of what a cell displayed and that is no picture; the value of a last expression is in the output already.
fn displayed(answer: &ExecutionAnswer) -> impl Iterator<Item = &String> {
    let shown = answer.results.iter();
    let texts = shown.filter(|bundle| picture_of(bundle).is_none());
    let texts = texts.filter_map(|bundle| bundle.get("text/plain"));
    texts.filter(|text| !answer.output.contains(text.trim_end()))
}

fn picture_of(bundle: &MimeBundle) -> Option<(&'static str, &String)> {
    let mut mimes = PICTURES.iter();
    mimes.find_map(|mime| Some((*mime, bundle.get(*mime)?)))
}

/// Small pictures as they are, as long as all of them together are small; the others as files of the session with a link.
async fn pictures(state: &Shared, ids: &SessionIds, answer: &ExecutionAnswer) -> Vec<ContentBlock> {
    let mut room = MAX_PICTURE_BYTES;
    let mut blocks = Vec::new();
    for (mime, data) in answer.results.iter().filter_map(picture_of) {
        if let Some(left) = room.checked_sub(data.len()) {
            room = left;
            blocks.push(ContentBlock::image(data.clone(), mime));
            continue;
        }
        let bytes = STANDARD.decode(data.trim()).unwrap_or_default();
        // The code has run and its answer counts, whatever becomes of a picture.
        let about = match kept_picture(state, ids, answer.execution_count, mime, &bytes).await {
            Ok((name, link)) => format!("is in {name}: {link}"),
            Err(problem) => format!("could not be kept: {}", problem.detail()),
        };
        blocks.push(ContentBlock::text(format!(
            "[a picture of {} bytes, too large to show here, {about}]",
            bytes.len()
        )));
    }
    blocks
}

/// Puts a picture into the workspace, under a name that no other has had; its path and a link.
async fn kept_picture(
    state: &Shared,
    ids: &SessionIds,
    execution_count: u64,
    mime: &str,
    bytes: &[u8],
) -> Result<(String, String), Problem> {
    let extension = mime.strip_prefix("image/").unwrap_or("png");
    let unique = uuid::Uuid::new_v4().simple().to_string();
    let name = format!(
        "figures/figure-{execution_count}-{}.{extension}",
        &unique[..8]
    );
    let path = workspace_path("path", &name)?;
    let core = &state.core;
    core.write_file(ids, &path, bytes, 0o644, false).await?;
    let expires_in = state.settings.s3.presign_expires;
    let link = core.download_link(ids, &path, expires_in).await?;
    Ok((name, link))
}

/// What a tool answered, but for base64 that would fill a model's context: a link takes its place.
pub async fn without_much_base64(
    state: &Shared,
    input: &Value,
    mut answer: Value,
) -> Result<Value, Problem> {
    let length = answer["contents_b64"].as_str().map_or(0, str::len);
    if length <= MAX_PICTURE_BYTES {
        return Ok(answer);
    }
    let facts = find(state, input["sandbox_id"].as_str().unwrap_or_default())?;
    let path = workspace_path("path", input["path"].as_str().unwrap_or_default())?;
    let expires_in = state.settings.s3.presign_expires;
    let link = state
        .core
        .download_link(&facts.ids, &path, expires_in)
        .await?;
    if let Value::Object(fields) = &mut answer {
        fields.remove("contents_b64");
        fields.insert("truncated".to_owned(), true.into());
        fields.insert("link".to_owned(), link.into());
        let note = "not text, and too much to show here; the link gives it to a person, run_python can read it";
        fields.insert("note".to_owned(), note.into());
    }
    Ok(answer)
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
