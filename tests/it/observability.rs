//! What operators see: metrics, traces, the description of the API.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

use serde_json::json;

use crate::support::{TestApp, wait_for};

/// Takes whatever is posted and keeps it: a collector as far as we are concerned.
fn collector() -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let received: Arc<Mutex<Vec<u8>>> = Arc::default();
    let kept = received.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, kept) = (stream.unwrap(), kept.clone());
            std::thread::spawn(move || {
                let mut buffer = vec![0; 65_536];
                while let Ok(count) = stream.read(&mut buffer) {
                    if count == 0 {
                        break;
                    }
                    kept.lock().unwrap().extend_from_slice(&buffer[..count]);
                    let _gone = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
                }
            });
        }
    });
    (address, received)
}

#[tokio::test]
async fn one_trace_goes_from_the_request_to_the_kernel_and_the_sync() {
    let (endpoint, received) = collector();
    let mut app = TestApp::start_with(&[("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())]).await;
    app.run("s", "open('f', 'w').write('1')").await;
    assert!(app.terminate().await.success());
    wait_for("the spans", || {
        let bytes = received.lock().unwrap().clone();
        let has = |word: &str| {
            bytes
                .windows(word.len())
                .any(|window| window == word.as_bytes())
        };
        ["/v1/traces", "cellblock", "request", "kernel", "sync"]
            .iter()
            .all(|word| has(word))
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_collector_that_is_not_there_costs_nothing_but_the_spans() {
    let app = TestApp::start_with(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")]).await;
    assert_eq!(app.run("s", "1 + 1").await["output"], "2\n");
}

#[tokio::test]
async fn metrics_count_what_happened_by_dialect_and_outcome() {
    let app = TestApp::start().await;
    app.run("s", "open('f', 'w').write('12345')").await;
    app.run("s", "1 / 0").await;
    app.post("/v1/execute", json!({})).await;
    let (_, created) = app.post("/sessions", json!({})).await;
    let id = created["session_id"].as_str().unwrap();
    let step = json!({"sandbox_id": id, "type": "bash", "payload": {"cmd": "exit 3"}});
    app.post(&format!("/sessions/{id}/step"), step).await;
    app.session("sandbox/stop", "s").await;
    let response = app.get("/metrics").send().await.unwrap();
    assert!(
        response.headers()["content-type"]
            .to_str()
            .unwrap()
            .starts_with("text/plain")
    );
    let text = response.text().await.unwrap();
    for line in [
        "cellblock_sessions_created_total{dialect=\"v1\"} 1",
        "cellblock_sessions_created_total{dialect=\"sessions\"} 1",
        "cellblock_sessions_reused_total{dialect=\"v1\"} 1",
        "cellblock_executions_total{dialect=\"v1\",outcome=\"ok\"} 1",
        "cellblock_executions_total{dialect=\"v1\",outcome=\"error\"} 1",
        "cellblock_execution_seconds_count{dialect=\"v1\",outcome=\"ok\"} 1",
        "cellblock_commands_total{dialect=\"sessions\",outcome=\"failed\"} 1",
        "cellblock_synced_bytes_total 5",
        "cellblock_refusals_total{code=\"invalid_argument\"} 1",
        "cellblock_session_lifetime_seconds_count 1",
        "cellblock_sessions_active 1",
        "cellblock_pool_size 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
}

#[tokio::test]
async fn the_description_and_its_page_need_no_key_and_metrics_do() {
    let app = TestApp::start_with(&[("SANDBOX_API_KEY", "secret")]).await;
    let (status, description) = app.get_json("/openapi.json").await;
    assert_eq!(status, 200);
    for path in [
        "/v1/execute",
        "/create_session",
        "/sessions/{id}/step",
        "/v1/tools/{name}",
        "/mcp",
        "/health",
    ] {
        assert!(description["paths"][path].is_object(), "{path}");
    }
    let page = app.get("/docs").send().await.unwrap();
    assert_eq!(page.status(), 200);
    assert!(
        page.headers()["content-type"]
            .to_str()
            .unwrap()
            .starts_with("text/html")
    );
    let text = page.text().await.unwrap();
    assert!(
        !text.contains("http://") && !text.contains("https://"),
        "it asks nobody else"
    );
    assert_eq!(app.get("/metrics").send().await.unwrap().status(), 401);
}
