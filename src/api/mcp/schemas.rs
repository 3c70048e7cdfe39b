//! The tools as MCP lists them: those of the tools dialect, `run_python` and `get_file_link`.
//! Holds no logic. Invariant: every tool listed can be called.

use std::sync::Arc;

use rmcp::model::Tool;
use serde_json::{Map, Value, json};

use crate::api::tools::all_tools;

pub fn all() -> Vec<Tool> {
    let mut tools = vec![
        tool(
            "run_python",
            "Run Python in your persistent session: variables, imports and files stay from call to call. The value of a last expression is shown, plots come back as pictures. \
             numpy, pandas and matplotlib are there; there is no network.",
            json!({"type": "object", "required": ["code"], "additionalProperties": false, "properties": {
                "code": {"type": "string", "description": "Python source"},
                "timeout_seconds": {"type": "integer", "minimum": 1, "description": "Time limit; what you computed before stays"}}}),
        ),
        tool(
            "get_file_link",
            "Get a link by which the user can download a file of your session. It works for a limited time.",
            json!({"type": "object", "required": ["path"], "additionalProperties": false, "properties": {
                "path": {"type": "string", "description": "Path in the working folder"},
                "expires_in": {"type": "integer", "minimum": 1, "description": "Seconds that it works"}}}),
        ),
    ];
    for described in all_tools() {
        tools.push(tool(
            described["name"].as_str().unwrap_or_default(),
            described["description"].as_str().unwrap_or_default(),
            described["input_schema"].clone(),
        ));
    }
    tools
}

pub fn is_known(name: &str) -> bool {
    all().iter().any(|tool| tool.name == name)
}

fn tool(name: &str, description: &str, schema: Value) -> Tool {
    let schema: Map<String, Value> = match schema {
        Value::Object(schema) => schema,
        _ => Map::new(),
    };
    Tool::new(name.to_owned(), description.to_owned(), Arc::new(schema))
}
