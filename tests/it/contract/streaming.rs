//! Server-sent events: order, the one `done`, and what a hang-up does.

use futures_util::StreamExt;
use serde_json::{Value, json};

use crate::support::{TestApp, wait_for};

/// The events of a whole stream, by name and data.
fn events(text: &str) -> Vec<(String, Value)> {
    let blocks = text.split("\n\n").filter(|block| block.contains("event:"));
    let field = |block: &str, name: &str| {
        let line = block
            .lines()
            .find_map(|line| line.strip_prefix(name).map(str::trim).map(str::to_owned));
        line.unwrap_or_default()
    };
    blocks
        .map(|block| {
            (
                field(block, "event:"),
                serde_json::from_str(&field(block, "data:")).unwrap(),
            )
        })
        .collect()
}

#[tokio::test]
async fn events_come_in_order_and_done_is_the_whole_answer() {
    let app = TestApp::start().await;
    let code = "import sys\nprint('a')\nprint('b', file=sys.stderr)\ndisplay(3)\n7";
    let body = json!({"user_id": "u", "session_id": "s", "code": code, "stream": true});
    let response = app
        .client
        .post(format!("{}/v1/execute", app.base))
        .json(&body)
        .send()
        .await
        .unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let events = events(&response.text().await.unwrap());
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["stdout", "stderr", "display", "result", "done"]);
    assert_eq!(events[0].1, json!({"text": "a\n"}));
    assert_eq!(events[3].1["text/plain"], "7");
    assert_eq!(events[4].1["output"], "a\nb\n7\n");
    assert_eq!(events[4].1["status"], "ok");
}

#[tokio::test]
async fn output_arrives_while_the_cell_still_runs() {
    let app = TestApp::start().await;
    app.run("s", "1").await;
    let code = "import os, time\nprint('early')\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('late')";
    let request = app
        .client
        .post(format!("{}/v1/execute", app.base))
        .header("accept", "text/event-stream");
    let body = json!({"user_id": "u", "session_id": "s", "code": code, "timeout_seconds": 50});
    let mut stream = request.json(&body).send().await.unwrap().bytes_stream();
    let mut text = String::new();
    while !text.contains("early") {
        text += std::str::from_utf8(&stream.next().await.unwrap().unwrap()).unwrap();
    }
    assert!(!text.contains("event: done"));
    std::fs::write(app.only_workspace().join("go"), "").unwrap();
    while let Some(chunk) = stream.next().await {
        text += std::str::from_utf8(&chunk.unwrap()).unwrap();
    }
    assert!(text.contains("late") && text.contains("event: done"));
}

#[tokio::test]
async fn a_client_that_hangs_up_interrupts_its_cell_unless_it_detached() {
    let app = TestApp::start().await;
    app.run("s", "1").await;
    for (detach, left_behind) in [(false, "interrupted"), (true, "finished")] {
        let code = "import time\ntry:\n    print('on')\n    for _ in range(40): time.sleep(0.05)\n    open('finished', 'w')\nexcept KeyboardInterrupt:\n    open('interrupted', 'w')";
        let body = json!({"user_id": "u", "session_id": "s", "code": code, "stream": true, "detach": detach});
        let response = app
            .client
            .post(format!("{}/v1/execute", app.base))
            .json(&body)
            .send()
            .await
            .unwrap();
        let mut stream = response.bytes_stream();
        stream.next().await.unwrap().unwrap();
        drop(stream);
        let trace = app.only_workspace().join(left_behind);
        wait_for(left_behind, || trace.exists().then_some(())).await;
    }
    assert_eq!(app.run("s", "1 + 1").await["state"], "kept");
}

#[tokio::test]
async fn a_request_that_cannot_be_carried_out_gets_a_status_and_not_a_stream() {
    let app = TestApp::start().await;
    let body = json!({"user_id": "u", "session_id": "s", "code": "1", "stream": true, "inputs": ["nowhere.csv"]});
    let (status, problem) = app.post("/v1/execute", body).await;
    assert_eq!(
        (status.as_u16(), &problem["code"]),
        (404, &json!("not_found"))
    );
    assert!(problem["detail"].as_str().unwrap().contains("nowhere.csv"));
}
