//! Bad input on every route: a 4xx problem document that names the field, never a 5xx, never a surprise.

use serde_json::{Value, json};

use crate::support::{TestApp, answer};

/// Every JSON route with a valid body, whose fields are then spoiled one by one.
fn routes() -> Vec<(&'static str, Value)> {
    vec![
        (
            "/v1/execute",
            json!({"user_id": "u", "session_id": "s", "code": "1", "inputs": [], "presign_expires_in": 60, "timeout_seconds": 5, "stream": false, "detach": false, "language": "python"}),
        ),
        (
            "/v1/sandbox/reset",
            json!({"user_id": "u", "session_id": "s"}),
        ),
        (
            "/v1/sandbox/interrupt",
            json!({"user_id": "u", "session_id": "s"}),
        ),
        (
            "/v1/sandbox/stop",
            json!({"user_id": "u", "session_id": "s"}),
        ),
        (
            "/v1/files/upload-urls",
            json!({"user_id": "u", "session_id": "s", "urls": ["http://example.com/"], "dest_dir": "d"}),
        ),
        (
            "/v1/files/delete",
            json!({"user_id": "u", "session_id": "s", "paths": ["f"]}),
        ),
    ]
}

const REQUIRED: [&str; 5] = ["user_id", "session_id", "code", "urls", "paths"];

fn assert_names(field: &str, status: reqwest::StatusCode, problem: &Value, what: &str) {
    assert!(status == 400 || status == 413, "{what}: {status} {problem}");
    assert_eq!(problem["status"], status.as_u16(), "{what}");
    assert!(
        ["invalid_argument", "too_large"].contains(&problem["code"].as_str().unwrap()),
        "{what}"
    );
    for part in ["type", "title", "detail"] {
        assert!(problem[part].is_string(), "{what}: no {part} in {problem}");
    }
    let named = problem["field"].as_str().unwrap_or_default();
    assert!(
        named == field || named.starts_with(&format!("{field}[")),
        "{what}: names {named:?}, not {field:?}: {problem}"
    );
}

#[tokio::test]
async fn every_field_of_every_route_with_a_wrong_type_or_missing_is_named() {
    let app = TestApp::start().await;
    for (route, valid) in routes() {
        for (field, _) in valid.as_object().unwrap() {
            for wrong in [
                json!({"a": 1}),
                json!([[1]]),
                json!(-1),
                json!(true),
                json!("\u{0}"),
            ] {
                let mut body = valid.clone();
                body[field] = wrong.clone();
                let is_fine = matches!(
                    (field.as_str(), &wrong),
                    ("stream" | "detach", Value::Bool(_)) | ("code", Value::String(_))
                );
                if is_fine {
                    continue;
                }
                let (status, problem) = app.post(route, body).await;
                assert_names(field, status, &problem, &format!("{route} {field}={wrong}"));
            }
            if REQUIRED.contains(&field.as_str()) {
                for missing in [None, Some(Value::Null)] {
                    let mut body = valid.clone();
                    match missing {
                        None => drop(body.as_object_mut().unwrap().remove(field)),
                        Some(null) => body[field] = null,
                    }
                    let (status, problem) = app.post(route, body).await;
                    assert_names(field, status, &problem, &format!("{route} without {field}"));
                }
            }
        }
    }
    assert_eq!(app.containers().len(), 0, "bad input made a sandbox");
}

#[tokio::test]
async fn odd_ids_are_refused_by_name_on_every_route() {
    let app = TestApp::start().await;
    let long = "x".repeat(129);
    let odd = [
        "",
        ".",
        "..",
        "a/b",
        "a\\b",
        "a\u{0}b",
        "a\nb",
        "\u{202e}",
        long.as_str(),
    ];
    for id in odd {
        for field in ["user_id", "session_id"] {
            for (route, mut body) in routes() {
                body[field] = json!(id);
                let (status, problem) = app.post(route, body).await;
                assert_names(field, status, &problem, &format!("{route} {field}={id:?}"));
            }
            let query = |name| if name == field { id } else { "fine" };
            for route in [
                "/v1/sandbox/status",
                "/v1/files/list",
                "/v1/files/download",
                "/v1/files/download-url",
            ] {
                let pairs = [
                    ("user_id", query("user_id")),
                    ("session_id", query("session_id")),
                    ("path", "f"),
                ];
                let (status, problem) = answer(app.get(route).query(&pairs)).await;
                assert_names(field, status, &problem, &format!("{route} {field}={id:?}"));
            }
        }
    }
}

#[tokio::test]
async fn numbers_out_of_range_are_refused_by_name() {
    let app = TestApp::start().await;
    for (field, values) in [
        (
            "timeout_seconds",
            vec![json!(0), json!(-1), json!(3601), json!(1e300), json!("5")],
        ),
        (
            "presign_expires_in",
            vec![json!(0), json!(604_801), json!(1.5)],
        ),
        ("language", vec![json!("ruby"), json!("")]),
    ] {
        for value in values {
            let mut body = json!({"user_id": "u", "session_id": "s", "code": "1"});
            body[field] = value.clone();
            let (status, problem) = app.post("/v1/execute", body).await;
            assert_names(field, status, &problem, &format!("{field}={value}"));
        }
    }
    for expires in ["0", "-1", "604801", "soon", "1.5"] {
        let pairs = [
            ("user_id", "u"),
            ("session_id", "s"),
            ("path", "f"),
            ("expires_in", expires),
        ];
        let (status, problem) = answer(app.get("/v1/files/download-url").query(&pairs)).await;
        assert_names("expires_in", status, &problem, expires);
    }
    let urls = vec!["http://example.com/"; 201];
    for (field, body) in [
        (
            "urls",
            json!({"user_id": "u", "session_id": "s", "urls": []}),
        ),
        (
            "urls",
            json!({"user_id": "u", "session_id": "s", "urls": urls}),
        ),
    ] {
        let (status, problem) = app.post("/v1/files/upload-urls", body).await;
        assert_names(field, status, &problem, field);
    }
    let escaped = json!({"user_id": "u", "session_id": "s", "code": "\u{1}".repeat(200_000)});
    assert_eq!(
        app.post("/v1/execute", escaped).await.0,
        413,
        "escaped, it does not fit a frame"
    );
    let huge = json!({"user_id": "u", "session_id": "s", "code": "#".repeat(600_000)});
    let (status, problem) = app.post("/v1/execute", huge).await;
    assert_eq!(
        (status.as_u16(), &problem["code"], &problem["field"]),
        (413, &json!("too_large"), &json!("code"))
    );
}

#[tokio::test]
async fn bodies_that_are_no_json_too_deep_or_too_long_are_4xx() {
    let app = TestApp::start().await;
    let post = |body: String| {
        let request = app.client.post(format!("{}/v1/execute", app.base));
        request
            .header("content-type", "application/json")
            .body(body)
    };
    for body in [
        "",
        "{",
        "[]",
        "null",
        "\"x\"",
        "{\"user_id\":\"u\"} trailing",
        "\u{feff}{}",
    ] {
        let (status, problem) = answer(post(body.to_owned())).await;
        assert_eq!(status, 400, "{body:?}: {problem}");
    }
    let (status, _) = answer(post("[".repeat(100_000))).await;
    assert_eq!(status, 400);
    let (status, problem) = answer(post(format!("{{\"code\":\"{}\"}}", "x".repeat(9 << 20)))).await;
    assert_eq!(
        (status.as_u16(), &problem["code"]),
        (413, &json!("too_large"))
    );
    let form = app
        .client
        .post(format!("{}/v1/execute", app.base))
        .body("{}");
    assert_eq!(
        answer(form).await.0,
        415,
        "a web page could send this unasked"
    );
    assert_eq!(app.get_json("/v1/nothing").await.0, 404);
    assert_eq!(app.get_json("/v1/execute").await.0, 405);
    let twice = app
        .get_json("/v1/sandbox/status?user_id=a&user_id=b&session_id=s")
        .await;
    assert_names("user_id", twice.0, &twice.1, "given twice");
}

#[tokio::test]
async fn broken_uploads_are_4xx() {
    let app = TestApp::start().await;
    let form = || reqwest::multipart::Form::new();
    let file = || reqwest::multipart::Part::bytes(b"x".to_vec()).file_name("f");
    let url = format!("{}/v1/files/upload", app.base);
    for (field, form) in [
        (
            "user_id",
            form().text("session_id", "s").part("file", file()),
        ),
        (
            "session_id",
            form().text("user_id", "u").part("file", file()),
        ),
        ("file", form().text("user_id", "u").text("session_id", "s")),
        (
            "user_id",
            form()
                .part("file", file())
                .text("user_id", "u")
                .text("session_id", "s"),
        ),
        (
            "user_id",
            form()
                .text("user_id", "a/b")
                .text("session_id", "s")
                .part("file", file()),
        ),
        (
            "file",
            form()
                .text("user_id", "u")
                .text("session_id", "s")
                .part("file", file().file_name("..")),
        ),
    ] {
        let (status, problem) = answer(app.client.post(&url).multipart(form)).await;
        assert_names(field, status, &problem, field);
    }
    let (status, _) = answer(app.client.post(&url).body("no form")).await;
    assert_eq!(status, 415);
}

#[tokio::test]
async fn every_response_carries_a_request_id() {
    let app = TestApp::start().await;
    let given = app
        .get("/health")
        .header("x-request-id", "my-id-1")
        .send()
        .await
        .unwrap();
    assert_eq!(given.headers()["x-request-id"], "my-id-1");
    for path in ["/health", "/v1/nothing", "/v1/sandbox/status"] {
        let response = app.get(path).send().await.unwrap();
        assert_eq!(response.headers()["x-request-id"].len(), 32, "{path}");
    }
    app.get("/v1/nothing")
        .header("x-request-id", "find-me-in-the-log")
        .send()
        .await
        .unwrap();
    assert!(app.log().contains("find-me-in-the-log"));
    let odd = app
        .get("/health")
        .header("x-request-id", "a b")
        .send()
        .await
        .unwrap();
    assert_ne!(odd.headers()["x-request-id"], "a b");
}
