//! What code in a sandbox finds to work with. What it must not find is in `security/a_container.rs`.

use serde_json::json;

use crate::support::{TestApp, backend};

async fn output(app: &TestApp, code: &str) -> String {
    let answer = app
        .run_with("s", code, json!({"timeout_seconds": 50}))
        .await;
    assert_eq!(answer["status"], "ok", "{answer}");
    answer["output"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn bash_jq_node_and_awk_work_inside() {
    let app = TestApp::start().await;
    for tool in [
        "bash --version",
        "jq --version",
        "node -e 1",
        "awk 1 /dev/null",
    ] {
        let name = tool.split(' ').next().unwrap();
        let on_host = std::process::Command::new(name).arg("--version").output();
        // Embedded sandboxes have what the host has; the image has them all.
        if backend() == "embedded" && on_host.is_err() {
            continue;
        }
        let code = format!(
            "import subprocess; subprocess.run({tool:?}, shell=True, capture_output=True).returncode"
        );
        assert_eq!(output(&app, &code).await, "0\n", "{tool}");
    }
}
