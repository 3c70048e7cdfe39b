//! Where no workspace can have a file system of its own: its size is looked at while code runs.

use serde_json::json;

use super::sessions::{open, step};
use crate::support::TestApp;

const SOFT: (&str, &str) = ("WORKSPACE_QUOTA", "soft");

#[tokio::test]
async fn where_the_quota_is_soft_a_workspace_that_outgrows_it_stops_the_cell() {
    let app = TestApp::start_with(&[SOFT, ("MAX_WORKSPACE_SIZE_MB", "8")]).await;
    let code = "import time\nfor i in range(1000):\n    open(f'f{i}', 'wb').write(b'x' * (1 << 20))\n    time.sleep(0.05)";
    let answer = app
        .run_with("s", code, json!({"timeout_seconds": 55}))
        .await;
    assert_eq!(
        answer["error"]["name"], "WorkspaceQuotaExceeded",
        "{answer}"
    );
    assert_eq!(
        (&answer["status"], &answer["state"]),
        (&json!("error"), &json!("kept"))
    );
    let skipped = answer["sync"]["skipped"].as_array().unwrap();
    assert!(
        skipped[0]["reason"]
            .as_str()
            .unwrap()
            .contains("MAX_WORKSPACE_SIZE_MB"),
        "{skipped:?}"
    );
    let (status, problem) = app.upload("s", "more", &[0; 100], None).await;
    assert_eq!(
        (status.as_u16(), &problem["code"]),
        (507, &json!("quota_exceeded"))
    );
}

#[tokio::test]
async fn where_the_quota_is_soft_a_file_larger_than_the_workspace_is_refused_to_the_program_itself()
{
    let app = TestApp::start_with(&[SOFT, ("MAX_WORKSPACE_SIZE_MB", "2")]).await;
    let answer = app
        .run("s", "open('big', 'wb').write(b'x' * (3 << 20))")
        .await;
    assert_eq!(answer["error"]["name"], "OSError", "{answer}");
}

#[tokio::test]
async fn hiding_files_from_the_soft_quota_does_not_help() {
    let app = TestApp::start_with(&[SOFT, ("MAX_WORKSPACE_SIZE_MB", "8")]).await;
    let ways = [
        "name = lambda i: f'.cellblock-upload-{i}'",
        "import os\nfor _ in range(70): os.mkdir('d'); os.chdir('d')\nname = str",
    ];
    for (session, way) in ["names", "depth"].iter().zip(ways) {
        let code = format!(
            "{way}\nimport time\nfor i in range(1000):\n    open(name(i), 'wb').write(b'x' * (1 << 20))\n    time.sleep(0.05)"
        );
        let answer = app
            .run_with(session, &code, json!({"timeout_seconds": 55}))
            .await;
        assert_eq!(
            answer["error"]["name"], "WorkspaceQuotaExceeded",
            "{session}: {answer}"
        );
    }
    let (status, problem) = app.upload("s", ".cellblock-upload-x", b"1", None).await;
    assert_eq!((status.as_u16(), &problem["field"]), (400, &json!("file")));
}

#[tokio::test]
async fn where_the_quota_is_soft_a_program_that_fills_the_workspace_is_stopped_and_says_why() {
    let app = TestApp::start_with(&[SOFT, ("MAX_WORKSPACE_SIZE_MB", "20")]).await;
    let session = open(&app).await;
    let line = "for n in 1 2 3 4 5 6; do head -c 10000000 /dev/zero > f$n; done; sleep 60";
    let (status, answer) = step(&app, &session, "bash", line).await;
    assert_eq!(
        (status.as_u16(), &answer["exit_code"]),
        (200, &json!(137)),
        "{answer}"
    );
    assert!(
        answer["error"]
            .as_str()
            .unwrap()
            .contains("MAX_WORKSPACE_SIZE_MB"),
        "{answer}"
    );
}
