//! What a model is told of each tool: a short description and the JSON schema of its input.
//! Holds no logic. Invariant: every tool that can be called is described here, and the other way round (a test compares them).

use serde_json::{Value, json};

use super::calls::MAX_PIECES;
use super::files::MAX_READ_BYTES;
use super::request::{Mode, RUNTIMES};
use crate::settings::MAX_TIMEOUT;

pub const NAMES: [&str; 10] = [
    "sandbox_run",
    "sandbox_open",
    "sandbox_exec",
    "sandbox_exec_read",
    "sandbox_exec_wait",
    "sandbox_fs_write",
    "sandbox_fs_read",
    "sandbox_fs_list",
    "sandbox_fs_delete",
    "sandbox_close",
];

pub fn all() -> Vec<Value> {
    NAMES.iter().map(|name| tool(name)).collect()
}

pub fn of_mode(mode: Mode) -> Vec<Value> {
    let names = match mode {
        Mode::Compute => &NAMES[..1],
        Mode::Code => &NAMES[1..],
    };
    names.iter().map(|name| tool(name)).collect()
}

fn tool(name: &str) -> Value {
    let (description, properties, required) = described(name);
    json!({"name": name, "description": description,
        "input_schema": {"type": "object", "properties": properties, "required": required, "additionalProperties": false}})
}

fn described(name: &str) -> (&'static str, Value, &'static [&'static str]) {
    let text = |about: &str| json!({"type": "string", "description": about});
    let number = |about: &str, least: u64, most: u64| json!({"type": "integer", "minimum": least, "maximum": most, "description": about});
    let seconds = |about: &str| number(about, 1, MAX_TIMEOUT.as_secs());
    let flag = |about: &str| json!({"type": "boolean", "description": about});
    let words =
        |about: &str| json!({"type": "array", "items": {"type": "string"}, "description": about});
    let map = |about: &str| json!({"type": "object", "additionalProperties": {"type": "string"}, "description": about});
    let sandbox = text("The id that sandbox_open gave");
    let exec = text("The id that sandbox_exec gave");
    let path = text("Path in the workspace, such as src/main.py");
    match name {
        "sandbox_run" => (
            "Run one piece of code in a fresh sandbox with no network. Nothing is kept afterwards: pass every file it needs, print what you want to know.",
            json!({"runtime": {"type": "string", "enum": RUNTIMES, "description": "python if left out"},
                "code": text("The program"), "args": words("Its arguments"), "env": map("Environment variables"),
                "files": map("Files to put into its folder first: path to text"), "timeout_seconds": seconds("Time limit, 120 if left out")}),
            &["code"],
        ),
        "sandbox_open" => (
            "Open your sandbox: a Linux machine with no network whose files stay from call to call until it is closed. Calling it again gives the same one.",
            json!({"session_key": text("A name, to have more than one sandbox"),
                "sandbox": {"anyOf": [{"type": "string", "enum": RUNTIMES}, {"type": "object", "additionalProperties": true}],
                    "description": "What it must have (a runtime), or limits tighter than usual"}}),
            &[],
        ),
        "sandbox_exec" => (
            "Run a program in the sandbox and wait for it. With stream it goes on in the background: poll with sandbox_exec_read or wait with sandbox_exec_wait. Shell syntax needs [\"bash\", \"-c\", \"…\"].",
            json!({"sandbox_id": sandbox, "cmd": words("Program and arguments"), "cwd": text("Folder in the workspace"),
                "env": map("Environment variables"), "timeout_seconds": seconds("Time limit, 120 if left out; exit code 124 when it is over"),
                "stream": flag("Return at once and let it run")}),
            &["sandbox_id", "cmd"],
        ),
        "sandbox_exec_read" => (
            "Read what a program has printed since the piece with number since_seq.",
            json!({"sandbox_id": sandbox, "exec_id": exec, "since_seq": number("The last piece you have seen", 0, u64::MAX >> 1),
                "max_chunks": number("At most so many, 100 if left out", 1, MAX_PIECES)}),
            &["sandbox_id", "exec_id"],
        ),
        "sandbox_exec_wait" => (
            "Wait until a program has ended, or until the time is up.",
            json!({"sandbox_id": sandbox, "exec_id": exec, "timeout_seconds": seconds("120 if left out")}),
            &["sandbox_id", "exec_id"],
        ),
        "sandbox_fs_write" => (
            "Write a file of the workspace; folders are made as needed.",
            json!({"sandbox_id": sandbox, "path": path, "contents": text("Text"), "contents_b64": text("Or bytes, as base64"),
                "mode": text("Permissions, 0644 if left out"), "overwrite": flag("False: fail if it is there")}),
            &["sandbox_id", "path"],
        ),
        "sandbox_fs_read" => (
            "Read a file of the workspace. Bytes that are not text come as base64.",
            json!({"sandbox_id": sandbox, "path": path, "max_bytes": number("262144 if left out", 1, MAX_READ_BYTES)}),
            &["sandbox_id", "path"],
        ),
        "sandbox_fs_list" => (
            "List a folder of the workspace.",
            json!({"sandbox_id": sandbox, "path": text("The workspace itself if left out"), "recursive": flag("All that is below it too")}),
            &["sandbox_id"],
        ),
        "sandbox_fs_delete" => (
            "Delete a file of the workspace, or with recursive a folder.",
            json!({"sandbox_id": sandbox, "path": path, "recursive": flag("Folders too, with all that is in them")}),
            &["sandbox_id", "path"],
        ),
        _ => (
            "Close the sandbox. Its files go with it, unless delete_workspace is false: then the next sandbox_open finds them again.",
            json!({"sandbox_id": sandbox, "delete_workspace": flag("True if left out")}),
            &["sandbox_id"],
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_is_described_once_and_shortly() {
        let all: Vec<Value> = [of_mode(Mode::Compute), of_mode(Mode::Code)].concat();
        assert_eq!(all.len(), NAMES.len());
        for (tool, name) in all.iter().zip(NAMES) {
            assert_eq!(tool["name"], name);
            assert!(tool["description"].as_str().unwrap().len() < 260, "{name}");
            let properties = tool["input_schema"]["properties"].as_object().unwrap();
            for required in tool["input_schema"]["required"].as_array().unwrap() {
                assert!(
                    properties.contains_key(required.as_str().unwrap()),
                    "{name}: {required}"
                );
            }
        }
    }
}
