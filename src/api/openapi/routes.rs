//! Every route as it is described: method, path, what goes in, what comes out, with examples.
//! Pure data. Invariant: a route stands here once.

use serde_json::{Value, json};

pub enum Body {
    None,
    Json(Value),
    Multipart(Value),
}

type Answers = Vec<(u16, &'static str, Option<(&'static str, Value)>)>;

pub struct Route {
    pub dialect: &'static str,
    pub method: &'static str,
    pub path: &'static str,
    pub summary: &'static str,
    /// Needs no key.
    pub is_open: bool,
    /// May answer with server-sent events instead.
    pub streams: bool,
    pub parameters: Vec<Value>,
    pub body: Body,
    pub answers: Answers,
}

fn id(example: &str) -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": 128, "examples": [example]})
}

fn text(example: &str) -> Value {
    json!({"type": "string", "examples": [example]})
}

fn path_text(example: &str) -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": 1024, "examples": [example]})
}

fn number(least: u64, most: u64) -> Value {
    json!({"type": "integer", "minimum": least, "maximum": most})
}

fn flag() -> Value {
    json!({"type": "boolean"})
}

fn list(of: Value, most: usize) -> Value {
    json!({"type": "array", "items": of, "minItems": 1, "maxItems": most})
}

fn object(required: &[&str], properties: Value) -> Value {
    json!({"type": "object", "required": required, "properties": properties})
}

fn query(name: &str, required: bool, schema: Value) -> Value {
    json!({"name": name, "in": "query", "required": required, "schema": schema})
}

fn in_path(name: &str, example: &str) -> Value {
    json!({"name": name, "in": "path", "required": true, "schema": id(example)})
}

fn ok(schema: Value) -> Answers {
    vec![(200, "Done", Some(("application/json", schema)))]
}

/// An object of which only the named fields are promised.
fn having(fields: &[&str]) -> Value {
    json!({"type": "object", "required": fields})
}

struct Dialect(&'static str);

impl Dialect {
    fn post(
        &self,
        path: &'static str,
        summary: &'static str,
        body: Value,
        answers: Answers,
    ) -> Route {
        Route {
            body: Body::Json(body),
            ..self.bare("post", path, summary, answers)
        }
    }

    fn get(
        &self,
        path: &'static str,
        summary: &'static str,
        parameters: Vec<Value>,
        answers: Answers,
    ) -> Route {
        Route {
            parameters,
            ..self.bare("get", path, summary, answers)
        }
    }

    fn bare(
        &self,
        method: &'static str,
        path: &'static str,
        summary: &'static str,
        answers: Answers,
    ) -> Route {
        Route {
            dialect: self.0,
            method,
            path,
            summary,
            is_open: false,
            streams: false,
            parameters: Vec::new(),
            body: Body::None,
            answers,
        }
    }
}

pub fn routes() -> Vec<Route> {
    [service(), v1(), threads(), sessions(), tools()]
        .into_iter()
        .flatten()
        .collect()
}

fn service() -> Vec<Route> {
    let dialect = Dialect("service");
    let health = having(&[
        "status",
        "worker_id",
        "version",
        "backend",
        "pool_size",
        "pool_available",
        "active_sessions",
        "uptime_seconds",
        "redis_connected",
        "s3",
    ]);
    let open = |route: Route| Route {
        is_open: true,
        ..route
    };
    vec![
        open(dialect.get(
            "/health",
            "Is the service able to do its work, and who is it",
            vec![],
            vec![
                (200, "It is", Some(("application/json", health.clone()))),
                (
                    503,
                    "Something does not answer; reasons says what",
                    Some(("application/json", health)),
                ),
            ],
        )),
        open(dialect.get(
            "/openapi.json",
            "This description",
            vec![],
            ok(having(&["openapi", "paths"])),
        )),
        open(dialect.get(
            "/docs",
            "This description as a page",
            vec![],
            vec![(
                200,
                "A page",
                Some(("text/html", json!({"type": "string"}))),
            )],
        )),
        dialect.get(
            "/metrics",
            "Counts for Prometheus",
            vec![],
            vec![(
                200,
                "Metrics",
                Some(("text/plain", json!({"type": "string"}))),
            )],
        ),
    ]
}

fn v1() -> Vec<Route> {
    let dialect = Dialect("v1");
    let session = || json!({"user_id": id("ada"), "session_id": id("demo")});
    let with = |more: Value| {
        let mut properties = session();
        if let (Some(all), Value::Object(more)) = (properties.as_object_mut(), more) {
            all.extend(more);
        }
        properties
    };
    let ids = || {
        vec![
            query("user_id", true, id("ada")),
            query("session_id", true, id("demo")),
        ]
    };
    let and = |more: Vec<Value>| [ids(), more].concat();
    let answer = having(&[
        "output",
        "artifacts",
        "status",
        "state",
        "error",
        "stdout",
        "stderr",
        "results",
        "execution_count",
        "duration_ms",
        "truncated",
        "sync",
    ]);
    let execute = object(
        &["user_id", "session_id", "code"],
        with(json!({
        "code": json!({"type": "string", "maxLength": 500_000, "examples": ["x = 10\nx"]}), "inputs": json!({"type": "array", "items": path_text("data.csv"), "maxItems": 1000}),
        "presign_expires_in": number(1, 604_800), "timeout_seconds": json!({"type": "number", "exclusiveMinimum": 0, "maximum": 3600}),
        "stream": flag(), "detach": flag(), "language": json!({"type": "string", "enum": ["python"]})})),
    );
    let mut execute_answers = ok(answer);
    execute_answers[0].1 = "What came of the code; with stream or Accept: text/event-stream, server-sent events that end with it";
    let upload = object(
        &["user_id", "session_id", "file"],
        with(
            json!({"dest_dir": text("data"), "file": {"type": "string", "contentMediaType": "application/octet-stream", "format": "binary"}}),
        ),
    );
    vec![
        Route { streams: true, ..dialect.post("/v1/execute", "Run Python in the session's REPL", execute, execute_answers) },
        dialect.post("/v1/sandbox/reset", "Throw the variables away, keep the files", object(&["user_id", "session_id"], session()), ok(having(&["status", "output", "container_id"]))),
        dialect.post("/v1/sandbox/interrupt", "Stop the running cell", object(&["user_id", "session_id"], session()), ok(having(&["status", "state"]))),
        dialect.post("/v1/sandbox/stop", "Delete the sandbox, its files and what is stored of them", object(&["user_id", "session_id"], session()), ok(having(&["status", "deleted"]))),
        dialect.get("/v1/sandbox/status", "What is known of a session", ids(), ok(having(&["state", "backend"]))),
        dialect.get("/v1/sandboxes", "All sessions", vec![], ok(having(&["sandboxes"]))),
        dialect.post("/v1/files/upload-urls", "Take files in from URLs", object(&["user_id", "session_id", "urls"],
            with(json!({"urls": list(json!({"type": "string", "maxLength": 2000, "examples": ["https://example.com/data.csv"]}), 200), "dest_dir": text("data")}))), ok(having(&["status", "uploaded", "errors"]))),
        Route { body: Body::Multipart(upload), ..dialect.bare("post", "/v1/files/upload", "Take files in; the ids come before the files", ok(having(&["status", "uploaded"]))) },
        dialect.get("/v1/files/download", "The bytes of a file, or a range of them", and(vec![query("path", true, path_text("data.csv"))]), vec![
            (200, "The file", Some(("application/octet-stream", json!({"type": "string", "format": "binary"})))),
            (206, "A range of it", Some(("application/octet-stream", json!({"type": "string", "format": "binary"})))),
            (416, "A range beyond the file", Some(("application/problem+json", json!({"$ref": "#/components/schemas/Problem"}))))]),
        dialect.post("/v1/files/delete", "Delete files", object(&["user_id", "session_id", "paths"], with(json!({"paths": list(path_text("data.csv"), 1000)}))), ok(having(&["status", "deleted"]))),
        dialect.get("/v1/files/list", "All files of the workspace", ids(), ok(having(&["files"]))),
        dialect.get("/v1/files/download-url", "A presigned link to a file", and(vec![query("path", true, path_text("data.csv")), query("expires_in", false, number(1, 604_800))]),
            ok(having(&["status", "path", "expires_in", "download_url"]))),
    ]
}

fn threads() -> Vec<Route> {
    let dialect = Dialect("threads");
    let session = || json!({"session_id": text("3f0d…")});
    let created = object(
        &["session_id", "thread_id", "status", "workspace_dir"],
        json!({}),
    );
    let conflict = (
        409,
        "The thread has a live session",
        Some(("application/json", created.clone())),
    );
    let mut create = ok(created);
    create.push(conflict);
    let upload = object(
        &["session_id", "file"],
        json!({"session_id": text("3f0d…"), "filename": text("data.json"), "file": {"type": "string", "contentMediaType": "application/octet-stream", "format": "binary"}}),
    );
    vec![
        dialect.post("/create_session", "A session for a conversation", object(&["user_id", "thread_id"],
            json!({"user_id": id("ada"), "thread_id": id("conversation-1"), "timeout_minutes": number(1, 10_080)})), create),
        dialect.get("/get_session", "The live session of a conversation", vec![query("thread_id", true, id("conversation-1"))], ok(having(&["session_id", "thread_id", "status", "files_count"]))),
        dialect.post("/execute", "Run a command of bash, if the policy allows it", object(&["session_id", "command"],
            json!({"session_id": text("3f0d…"), "command": text("ls -la | head -n 3"), "timeout": {"type": "number", "exclusiveMinimum": 0, "maximum": 3600}})),
            ok(having(&["exit_code", "stdout", "stderr", "execution_time_ms"]))),
        Route { body: Body::Multipart(upload), ..dialect.bare("post", "/upload_file", "Take a file in; session_id comes before it", ok(having(&["status", "filename", "path", "size_bytes"]))) },
        dialect.post("/download_file", "The bytes of a file", object(&["session_id", "filename"], json!({"session_id": text("3f0d…"), "filename": path_text("data.json")})),
            vec![(200, "The file", Some(("application/octet-stream", json!({"type": "string", "format": "binary"}))))]),
        dialect.get("/list_files", "All files, the newest first", vec![query("session_id", true, text("3f0d…"))], ok(having(&["session_id", "workspace_dir", "files", "total_files", "total_size_bytes"]))),
        dialect.post("/cleanup", "End a session", object(&["session_id"], session()), ok(having(&["status", "session_id"]))),
    ]
}

fn sessions() -> Vec<Route> {
    let dialect = Dialect("sessions");
    let unprocessable = || {
        (
            422,
            "The body is not what it should be",
            Some((
                "application/json",
                json!({"$ref": "#/components/schemas/Detail"}),
            )),
        )
    };
    let mut step = ok(having(&["output", "error", "exit_code"]));
    step.push(unprocessable());
    let id = || vec![in_path("id", "8b1f…")];
    vec![
        dialect.bare("post", "/sessions", "A new session", ok(having(&["session_id"]))),
        Route { parameters: id(), ..dialect.post("/sessions/{id}/step", "Run bash or Python in it", object(&["sandbox_id", "type", "payload"],
            json!({"sandbox_id": text("8b1f…"), "type": {"type": "string", "enum": ["bash", "python"]},
                "payload": {"type": "object", "properties": {"cmd": text("ls"), "code": text("print(1)")}}})), step) },
        Route { parameters: id(), ..dialect.bare("delete", "/sessions/{id}", "Close it", vec![(204, "Closed", None)]) },
    ]
}

fn tools() -> Vec<Route> {
    let dialect = Dialect("tools");
    let sandbox = || json!({"oneOf": [{"type": "string", "enum": ["python", "node", "bash"]}, {"type": "object"}]});
    let context = json!({"type": "object", "properties": {"workflow_run_id": id("run-1"), "agent_run_id": id("agent-1"), "user_id": id("ada")}});
    vec![
        dialect.post("/v1/tools", "The tools for a kind of sandbox, with JSON schemas for a model", object(&[], json!({"sandbox": sandbox()})), ok(having(&["tools"]))),
        Route { parameters: vec![in_path("name", "sandbox_run")], ..dialect.post("/v1/tools/{name}", "Call a tool",
            object(&[], json!({"context": context, "input": {"type": "object", "examples": [{"code": "print(1)"}]}})), ok(json!({"type": "object"}))) },
        Route { parameters: vec![in_path("run_id", "run-1")], ..dialect.post("/v1/workflows/{run_id}/complete", "Close every session of a workflow run, now or later",
            object(&[], json!({"retain_seconds": number(0, 604_800)})), ok(having(&["ok"]))) },
    ]
}
