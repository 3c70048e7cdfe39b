//! Group E: the HTTP edge of every dialect. Routes come from the service's own description, so new ones are covered too.
//! What a case asks of single fields (34, 35) is tested in `input.rs` too, route by route and field by field.
//! Invariant: nothing here needs a container, so it runs once.

use std::time::Duration;

use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::{TestApp, answer, fetch_artifact};

const KEY: &str = "right-key";
const OPEN: [&str; 3] = ["/health", "/docs", "/openapi.json"];

/// Method, path with its parameters filled in, and whether it takes JSON.
struct Route {
    method: String,
    path: String,
    takes_json: bool,
}

async fn routes(app: &TestApp) -> Vec<Route> {
    let (_, description) = app.get_json("/openapi.json").await;
    let mut routes = Vec::new();
    for (path, methods) in description["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let path = path
                .replace("{name}", "sandbox_run")
                .replace("{id}", "x")
                .replace("{run_id}", "x");
            let content = &operation["requestBody"]["content"];
            routes.push(Route {
                method: method.to_uppercase(),
                path,
                takes_json: content["application/json"].is_object(),
            });
        }
    }
    assert!(routes.len() >= 30, "the description is cut short");
    routes
}

/// Sends a head that announces a body, but never the body, and gives the status of what comes back.
async fn status_without_body(
    app: &TestApp,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> u16 {
    let address = app.base.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n"
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream
        .write_all(format!("{head}\r\n").as_bytes())
        .await
        .unwrap();
    let mut start = [0; 12];
    let read = timeout(Duration::from_secs(10), stream.read_exact(&mut start)).await;
    read.unwrap_or_else(|_| panic!("{method} {path} {headers:?}: it waits for the body"))
        .unwrap();
    std::str::from_utf8(&start[9..]).unwrap().parse().unwrap()
}

#[tokio::test]
async fn case_32_every_route_wants_exactly_one_right_key_before_it_reads_the_body() {
    let app = TestApp::start_with(&[("SANDBOX_API_KEY", KEY)]).await;
    let bearer = |key: &str| format!("Bearer {key}");
    let (right_bearer, wrong_bearer) = (bearer(KEY), bearer("wrong-key"));
    let wrong: [&[(&str, &str)]; 14] = [
        &[],
        &[("x-api-key", "")],
        &[("x-api-key", "wrong-key")],
        &[("x-api-key", "right-ke")],
        &[("x-api-key", "right-key2")],
        &[("x-api-key", "RIGHT-KEY")],
        &[("x-api-key", "right-key,right-key")],
        &[("x-api-key", KEY), ("x-api-key", KEY)],
        &[("x-api-key", KEY), ("x-api-key", "wrong-key")],
        &[("x-api-key", KEY), ("authorization", &right_bearer)],
        &[("authorization", &wrong_bearer)],
        &[("authorization", KEY)],
        &[("authorization", "Basic cmlnaHQta2V5")],
        &[("authorization", "Bearer")],
    ];
    let routes = routes(&app).await;
    let guarded: Vec<&Route> = routes
        .iter()
        .filter(|route| !OPEN.contains(&route.path.as_str()))
        .collect();
    assert_eq!(guarded.len() + OPEN.len(), routes.len());
    for Route { method, path, .. } in guarded {
        for headers in wrong {
            let status = status_without_body(&app, method, path, headers).await;
            assert_eq!(status, 401, "{method} {path} {headers:?}");
        }
        let with_query = format!("{path}?api_key={KEY}&x-api-key={KEY}");
        assert_eq!(
            status_without_body(&app, method, &with_query, &[]).await,
            401,
            "{with_query}"
        );
    }
    assert_eq!(app.containers().len(), 0);
}

#[tokio::test]
async fn case_32_other_methods_and_spellings_of_a_path_are_no_way_around_the_key() {
    let app = TestApp::start_with(&[("SANDBOX_API_KEY", KEY)]).await;
    for path in [
        "/v1/sandboxes",
        "//v1/sandboxes",
        "/v1/sandboxes/",
        "/v1//sandboxes",
        "/./v1/sandboxes",
        "/health/../v1/sandboxes",
        "/%761/sandboxes",
        "/V1/SANDBOXES",
        "/health/x",
        "/docs/../v1/sandboxes",
        "/openapi.json/../metrics",
        "/metrics",
        "/mcp",
        "/v1/sandboxes?x=/health",
        "/v1/sandboxes#/health",
        "/nothing",
    ] {
        for method in [
            "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW",
        ] {
            let status = status_without_body(&app, method, path, &[]).await;
            assert_eq!(status, 401, "{method} {path}");
        }
    }
    for path in OPEN {
        assert_eq!(app.get(path).send().await.unwrap().status(), 200, "{path}");
    }
    let request = app.get("/v1/sandboxes");
    let bearer = request.try_clone().unwrap().bearer_auth(KEY);
    assert_eq!(bearer.send().await.unwrap().status(), 200);
    let header = request.header("x-api-key", KEY);
    assert_eq!(header.send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn case_32_without_a_key_web_pages_cannot_reach_the_service() {
    let app = TestApp::start().await;
    for Route { method, path, .. } in routes(&app).await {
        if OPEN.contains(&path.as_str()) {
            continue;
        }
        let method: reqwest::Method = method.parse().unwrap();
        let request = || {
            app.client
                .request(method.clone(), format!("{}{path}", app.base))
        };
        for (name, value) in [
            ("origin", "https://evil.example"),
            ("origin", "null"),
            ("host", "rebound.evil.example"),
            ("host", "127.0.0.1.evil.example"),
        ] {
            let status = request().header(name, value).send().await.unwrap().status();
            assert_eq!(status, 403, "{method} {path} {name}: {value}");
        }
    }
    let local = app
        .get("/v1/sandboxes")
        .header("origin", "http://localhost:3000");
    assert_eq!(answer(local).await.0, 200);
}

fn endless(start: &'static str) -> reqwest::Body {
    let chunks = futures_util::stream::repeat(vec![b'x'; 1 << 16]);
    let start = futures_util::stream::once(async move { start.as_bytes().to_vec() });
    let stream = futures_util::StreamExt::chain(start, chunks);
    reqwest::Body::wrap_stream(futures_util::StreamExt::map(
        stream,
        Ok::<_, std::io::Error>,
    ))
}

#[tokio::test]
async fn case_33_oversize_and_endless_json_is_413_on_every_route_that_takes_some() {
    let app = TestApp::start().await;
    let before_kb = app.service_memory_kb();
    for route in routes(&app).await.iter().filter(|route| route.takes_json) {
        let post = || {
            let request = app.client.post(format!("{}{}", app.base, route.path));
            request
                .header("content-type", "application/json")
                .header("accept", "application/json, text/event-stream")
        };
        let oversize = post().body(format!("{{\"x\":\"{}\"}}", "x".repeat(17 << 20)));
        assert_eq!(answer(oversize).await.0, 413, "{}", route.path);
        // The answer may be lost when the connection is closed on a client that never stops sending.
        match post().body(endless("{\"x\":\"")).send().await {
            Ok(response) => assert_eq!(response.status(), 413, "{}", route.path),
            Err(error) => assert!(!error.is_timeout(), "{}: {error}", route.path),
        }
    }
    let grown_kb = app.service_memory_kb().saturating_sub(before_kb);
    assert!(grown_kb < 128 << 10, "the service grew by {grown_kb} KiB");
}

#[tokio::test]
async fn case_33_oversize_and_endless_uploads_are_413_and_leave_nothing() {
    let app =
        TestApp::start_with(&[("MAX_UPLOAD_BYTES", "100000"), ("MAX_FILE_SIZE_MB", "1")]).await;
    let (status, problem) = app.upload("s", "large", &[0; 100_001], None).await;
    assert_eq!(
        (status.as_u16(), &problem["code"]),
        (413, &json!("too_large"))
    );
    let form = "--b\r\ncontent-disposition: form-data; name=\"user_id\"\r\n\r\nu\r\n--b\r\ncontent-disposition: form-data; name=\"session_id\"\r\n\r\ns\r\n--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n";
    let request = app.client.post(format!("{}/v1/files/upload", app.base));
    let request = request.header("content-type", "multipart/form-data; boundary=b");
    match request.body(endless(form)).send().await {
        Ok(response) => assert_eq!(response.status(), 413),
        Err(error) => assert!(!error.is_timeout(), "{error}"),
    }
    let (_, created) = app
        .post("/create_session", json!({"user_id": "u", "thread_id": "t"}))
        .await;
    let part = reqwest::multipart::Part::bytes(vec![0; (1 << 20) + 1]).file_name("large");
    let form = reqwest::multipart::Form::new()
        .text(
            "session_id",
            created["session_id"].as_str().unwrap().to_owned(),
        )
        .part("file", part);
    let request = app.client.post(format!("{}/upload_file", app.base));
    assert_eq!(answer(request.multipart(form)).await.0, 413);
    assert_eq!(app.list("s").await, Vec::<String>::new());
}

#[tokio::test]
async fn case_33_endless_headers_end_the_connection() {
    let app = TestApp::start().await;
    let address = app.base.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\n").await.unwrap();
    let flood = async {
        while stream
            .write_all(&b"x-more: and more\r\n".repeat(100))
            .await
            .is_ok()
        {}
        let mut told = Vec::new();
        let _closed = stream.read_to_end(&mut told).await;
        told
    };
    let told = timeout(Duration::from_secs(20), flood)
        .await
        .expect("it reads for ever");
    let told = String::from_utf8_lossy(&told);
    assert!(told.is_empty() || told.starts_with("HTTP/1.1 4"), "{told}");
    assert_eq!(app.get_json("/health").await.0, 200);
}

#[tokio::test]
async fn case_34_odd_ids_are_400_or_name_sessions_that_share_nothing() {
    let app = TestApp::start().await;
    let long = "é".repeat(128);
    let too_long = "x".repeat(129);
    let ids = [
        "a",
        "A",
        "a ",
        " a",
        "a.",
        ".a",
        "...",
        "a:b",
        "a%2Fb",
        "a%00b",
        "%2e%2e",
        "a'b",
        "a\"b",
        "a;b",
        "a|b",
        "$(a)",
        "`a`",
        "*",
        "~",
        "-a",
        "--help",
        "é",
        "e\u{301}",
        "ﬁ",
        "fi",
        "Ａ",
        "日本語",
        "🦀",
        "con",
        "nul",
        long.as_str(),
        "a/b",
        "a\\b",
        "..",
        ".",
        "",
        "a\0b",
        "a\nb",
        "a\rb",
        "\u{7f}",
        "\u{85}",
        "\u{202e}a",
        "\u{200b}",
        "\u{feff}a",
        "\u{e000}",
        too_long.as_str(),
    ];
    let mut opened = Vec::new();
    for id in ids {
        let query = [("user_id", id), ("session_id", "s")];
        let mut form = reqwest::multipart::Form::new();
        for (name, value) in query {
            form = form.text(name, value.to_owned());
        }
        let part = reqwest::multipart::Part::bytes(id.as_bytes().to_vec()).file_name("id");
        let upload = app.client.post(format!("{}/v1/files/upload", app.base));
        let (status, problem) = answer(upload.multipart(form.part("file", part))).await;
        match status {
            StatusCode::OK => opened.push(id),
            _ => assert_eq!(
                (status.as_u16(), &problem["field"]),
                (400, &json!("user_id")),
                "{id:?}: {problem}"
            ),
        }
    }
    assert!(opened.len() >= 25, "{opened:?}");
    for id in &opened {
        let query = [("user_id", *id), ("session_id", "s"), ("path", "id")];
        let download = app
            .get("/v1/files/download")
            .query(&query)
            .send()
            .await
            .unwrap();
        assert_eq!(download.bytes().await.unwrap(), id.as_bytes(), "{id:?}");
    }
    let folders = std::fs::read_dir(app.work_root().join("sessions"))
        .unwrap()
        .count();
    assert_eq!(folders, opened.len(), "each has a folder of its own");
    // The separators of the two ids do not run together either.
    for (user, session) in [("a", "b:c"), ("a:b", "c"), ("ab", "c"), ("a", "bc")] {
        let query = [("user_id", user), ("session_id", session)];
        let (_, listed) = answer(app.get("/v1/files/list").query(&query)).await;
        assert_eq!(listed["files"], json!([]), "{user} {session}");
    }
}

#[tokio::test]
async fn case_35_bad_json_is_4xx_on_every_route() {
    let app = TestApp::start().await;
    let deep = format!("{}{}", "[".repeat(50_000), "]".repeat(50_000));
    let deep_object = format!(
        "{{\"user_id\":{}1{}}}",
        "{\"a\":".repeat(5000),
        "}".repeat(5000)
    );
    let wrong_types = r#"{"user_id":1,"session_id":[],"thread_id":{},"code":null,"context":[],"input":3,"type":4,"payload":[],"sandbox":[1],"urls":"x","paths":{"a":1},"command":false,"retain_seconds":"x"}"#;
    for route in routes(&app).await.iter().filter(|route| route.takes_json) {
        for body in [
            "",
            "{",
            "[]",
            "null",
            "\"x\"",
            "1e999",
            "{\"user_id\":\"u\"} trailing",
            "\u{feff}{}",
            "{'a':1}",
            "\u{0}",
            wrong_types,
            deep.as_str(),
            deep_object.as_str(),
        ] {
            // Creating a session takes no body, and says nothing about one that is there.
            if route.path == "/sessions" {
                continue;
            }
            let request = app.client.post(format!("{}{}", app.base, route.path));
            let request = request
                .header("content-type", "application/json")
                .header("accept", "application/json, text/event-stream")
                .body(body.to_owned());
            let response = request.send().await.unwrap();
            let shown: String = body.chars().take(40).collect();
            assert!(
                response.status().is_client_error(),
                "{} {shown:?}: {}",
                route.path,
                response.status()
            );
        }
    }
    assert_eq!(app.containers().len(), 0, "bad input made a sandbox");
    assert!(!app.log().contains("panicked"));
}

#[tokio::test]
async fn case_36_an_html_artifact_is_an_attachment_wherever_it_is_read() {
    let app = TestApp::start().await;
    let names = [
        "page.html",
        "image.svg",
        "feed.xml",
        "page.xhtml",
        "script.js",
        "page.htm",
        "sheet.xsl",
        "no-ending",
        "odd\".html",
    ];
    for name in names {
        assert_eq!(
            app.upload("s", name, b"<script>1</script>", None).await.0,
            200
        );
        let query = [("user_id", "u"), ("session_id", "s"), ("path", name)];
        let direct = app
            .get("/v1/files/download")
            .query(&query)
            .send()
            .await
            .unwrap();
        let (_, link) = answer(app.get("/v1/files/download-url").query(&query)).await;
        let linked = app
            .client
            .get(link["download_url"].as_str().unwrap())
            .send()
            .await
            .unwrap();
        for response in [direct, linked] {
            assert_eq!(response.status(), 200);
            let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
            assert!(
                header("content-disposition").starts_with("attachment"),
                "{name}"
            );
            assert_eq!(header("x-content-type-options"), "nosniff", "{name}");
            let kind = header("content-type");
            let renders = ["html", "svg", "xml", "javascript"]
                .iter()
                .any(|word| kind.contains(word));
            assert!(!renders, "{name} is {kind}");
        }
    }
}

#[tokio::test]
async fn case_37_an_expired_or_altered_link_of_an_artifact_does_not_work() {
    let app = TestApp::start().await;
    let executed = app
        .run_with(
            "s",
            "open('f', 'w').write('x'); open('g', 'w').write('y')",
            json!({"presign_expires_in": 2}),
        )
        .await;
    let link = |name: &str| -> String {
        let artifacts: &Vec<Value> = executed["artifacts"].as_array().unwrap();
        let found = artifacts.iter().find(|artifact| artifact["path"] == name);
        found.unwrap()["download_url"].as_str().unwrap().to_owned()
    };
    let (first, second) = (link("f"), link("g"));
    assert_eq!(fetch_artifact(&app, &executed, "f").await.1, b"x");
    let signature = |url: &str| url.split("X-Amz-Signature=").nth(1).unwrap().to_owned();
    let flipped = if signature(&first).starts_with('0') {
        "1"
    } else {
        "0"
    };
    let altered = [
        first.replace("/f?", "/g?"),
        first.replace("X-Amz-Expires=2", "X-Amz-Expires=604800"),
        first.replace("attachment", "inline"),
        first.replace(&signature(&first), &signature(&second)),
        first.replace(
            &signature(&first),
            &format!("{flipped}{}", &signature(&first)[1..]),
        ),
        format!("{first}&response-content-type=text/html"),
        first.split("&X-Amz-Signature").next().unwrap().to_owned(),
        first.split('?').next().unwrap().to_owned(),
        first.replace("/f?", "/..%2f..%2ff?"),
    ];
    for url in altered {
        assert_ne!(url, first);
        let response = app.client.get(&url).send().await.unwrap();
        let status = response.status().as_u16();
        assert!([400, 403].contains(&status), "{status} for {url}");
        assert!(!response.text().await.unwrap().eq("x"));
    }
    assert_eq!(
        app.client
            .put(&first)
            .body("z")
            .send()
            .await
            .unwrap()
            .status(),
        403
    );
    for _ in 0..200 {
        let status = app.client.get(&first).send().await.unwrap().status();
        if status == 403 || status == 400 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the link still works long after its time");
}
