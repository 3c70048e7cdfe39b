//! The file tools of a sandbox.
//! Never reads more than was asked for. Invariant: text comes back as text, anything else as base64, never mangled.

use std::io::Read;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::calls::find;
use super::request::within;
use crate::api::AppState;
use crate::api::input::{folder, workspace_path};
use crate::api::problem::Problem;
use crate::session::CoreError;
use crate::workspace::EntryKind;

const DEFAULT_READ_BYTES: u64 = 262_144;
pub const MAX_READ_BYTES: u64 = 8 << 20;

type Answer = Result<Value, Problem>;

#[derive(Deserialize)]
pub struct WriteInput {
    sandbox_id: String,
    path: String,
    contents: Option<String>,
    contents_b64: Option<String>,
    mode: Option<String>,
    overwrite: Option<bool>,
}

pub async fn write(state: &Arc<AppState>, input: WriteInput) -> Answer {
    let facts = find(state, &input.sandbox_id)?;
    let path = workspace_path("input.path", &input.path)?;
    let bytes = match (input.contents, input.contents_b64) {
        (Some(text), None) => text.into_bytes(),
        (None, Some(text)) => STANDARD.decode(text).map_err(|_| {
            Problem::invalid("input.contents_b64", "input.contents_b64: is not base64")
        })?,
        _ => {
            let detail = "input.contents: give contents or contents_b64";
            return Err(Problem::invalid("input.contents", detail));
        }
    };
    let mode = input.mode.unwrap_or_else(|| "0644".to_owned());
    let mode = u32::from_str_radix(&mode, 8)
        .ok()
        .filter(|mode| *mode <= 0o777);
    let mode = mode.ok_or_else(|| {
        Problem::invalid(
            "input.mode",
            "input.mode: give permissions such as \"0644\"",
        )
    })?;
    let overwrite = input.overwrite.unwrap_or(true);
    state
        .core
        .write_file(&facts.ids, &path, &bytes, mode, overwrite)
        .await?;
    Ok(json!({"ok": true, "path": path.to_text()}))
}

#[derive(Deserialize)]
pub struct ReadInput {
    sandbox_id: String,
    path: String,
    max_bytes: Option<u64>,
}

pub async fn read(state: &Arc<AppState>, input: ReadInput) -> Answer {
    let facts = find(state, &input.sandbox_id)?;
    let path = workspace_path("input.path", &input.path)?;
    let most = within("input.max_bytes", input.max_bytes, 1, MAX_READ_BYTES)?
        .unwrap_or(DEFAULT_READ_BYTES);
    let opened = state.core.open_download(&facts.ids, &path).await?.opened;
    let size_bytes = opened.facts.size_bytes;
    let read = tokio::task::spawn_blocking(move || {
        let mut bytes = Vec::new();
        opened
            .file
            .take(most)
            .read_to_end(&mut bytes)
            .map(|_| bytes)
    });
    let mut bytes = read
        .await
        .map_err(CoreError::internal)?
        .map_err(CoreError::workspace)?;
    let truncated = size_bytes > bytes.len() as u64;
    if truncated
        && let Err(error) = std::str::from_utf8(&bytes)
        && error.error_len().is_none()
    {
        // The cut went through a character.
        bytes.truncate(error.valid_up_to());
    }
    Ok(match String::from_utf8(bytes) {
        Ok(text) => json!({"contents": text, "truncated": truncated, "size_bytes": size_bytes}),
        Err(error) => {
            json!({"contents_b64": STANDARD.encode(error.into_bytes()), "truncated": truncated, "size_bytes": size_bytes})
        }
    })
}

#[derive(Deserialize)]
pub struct ListInput {
    sandbox_id: String,
    path: Option<String>,
    recursive: Option<bool>,
}

pub async fn list(state: &Arc<AppState>, input: ListInput) -> Answer {
    let facts = find(state, &input.sandbox_id)?;
    let path = folder("input.path", input.path.as_deref())?;
    let entries = state
        .core
        .list_entries(&facts.ids, path.as_ref(), input.recursive.unwrap_or(false))
        .await?;
    let entries: Vec<Value> = entries
        .iter()
        .map(|entry| {
            let kind = match entry.kind {
                EntryKind::File => "file",
                EntryKind::Folder => "dir",
            };
            json!({"path": entry.path.to_text(), "type": kind, "size": entry.facts.size_bytes,
                "mode": format!("{:04o}", entry.facts.mode & 0o7777), "mtime_unix": entry.facts.mtime_ns / 1_000_000_000})
        })
        .collect();
    Ok(json!({ "entries": entries }))
}

#[derive(Deserialize)]
pub struct DeleteInput {
    sandbox_id: String,
    path: String,
    recursive: Option<bool>,
}

pub async fn delete(state: &Arc<AppState>, input: DeleteInput) -> Answer {
    let facts = find(state, &input.sandbox_id)?;
    let path = workspace_path("input.path", &input.path)?;
    if !state
        .core
        .delete_path(&facts.ids, &path, input.recursive.unwrap_or(false))
        .await?
    {
        let detail = format!("path: {:?} is not in the workspace", path.to_text());
        return Err(CoreError::NotFound(detail).into());
    }
    Ok(json!({"ok": true, "deleted": path.to_text()}))
}
