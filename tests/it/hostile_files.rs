//! What code in a sandbox may plant in its workspace, and what the host makes of it.

use std::os::unix::fs::symlink;

use serde_json::json;

use crate::support::{TestApp, fetch_artifact};

#[tokio::test]
async fn links_are_never_followed_by_the_host() {
    let app = TestApp::start().await;
    let canary = tempfile::tempdir().unwrap();
    std::fs::write(canary.path().join("secret"), "canary").unwrap();
    app.run("s", "import os\nos.symlink('/etc/passwd', 'file'); os.symlink('/etc', 'dir'); os.symlink('file', 'chain'); os.symlink('/proc/self/environ', 'env')").await;
    let workspace = app.only_workspace();
    symlink(canary.path(), workspace.join("outside")).unwrap();
    symlink(canary.path().join("secret"), workspace.join("secret")).unwrap();
    let answer = app.run("s", "1").await;
    assert_eq!(answer["artifacts"], json!([]));
    let skipped: Vec<_> = answer["sync"]["skipped"]
        .as_array()
        .unwrap()
        .iter()
        .map(|skip| skip["path"].as_str().unwrap())
        .collect();
    assert_eq!(
        skipped,
        ["chain", "dir", "env", "file", "outside", "secret"]
    );
    assert_eq!(app.list("s").await, Vec::<String>::new());
    for path in [
        "file",
        "dir/passwd",
        "chain",
        "env",
        "outside/secret",
        "secret",
    ] {
        let download = app
            .get(&format!(
                "/v1/files/download?user_id=u&session_id=s&path={path}"
            ))
            .send()
            .await
            .unwrap();
        assert_eq!(download.status(), 404, "{path}");
        let (status, _) = app
            .get_json(&format!(
                "/v1/files/download-url?user_id=u&session_id=s&path={path}"
            ))
            .await;
        assert_eq!(status, 404, "{path}");
    }
    let (status, _) = app.upload("s", "secret", b"mine", None).await;
    assert_eq!(status, 200, "the link itself is replaced");
    let (status, _) = app.upload("s", "new", b"mine", Some("outside")).await;
    assert_eq!(status, 400, "a linked folder is refused");
    let (status, _) = app.upload("s", "f", b"mine", Some("outside/deeper")).await;
    assert_eq!(status, 400);
    app.session("sandbox/stop", "s").await;
    assert_eq!(
        std::fs::read_to_string(canary.path().join("secret")).unwrap(),
        "canary"
    );
    assert_eq!(
        std::fs::read_dir(canary.path()).unwrap().count(),
        1,
        "nothing was written or deleted outside"
    );
}

#[tokio::test]
async fn pipes_sockets_and_holes_are_skipped_with_a_reason_and_block_nothing() {
    let app = TestApp::start().await;
    let code = "import os, socket\nos.mkfifo('fifo')\ns = socket.socket(socket.AF_UNIX); s.bind('socket')\nwith open('hole', 'wb') as f: f.truncate(400 << 20)\nopen('plain', 'w').write('x')";
    let answer = app.run("s", code).await;
    assert_eq!(answer["status"], "ok", "{answer}");
    let reasons = answer["sync"]["skipped"].to_string();
    for word in ["FIFO", "socket", "sparse"] {
        assert!(reasons.contains(word), "{reasons}");
    }
    assert_eq!(answer["artifacts"].as_array().unwrap().len(), 1);
    assert_eq!(app.list("s").await, ["plain"]);
    let download = app
        .get("/v1/files/download?user_id=u&session_id=s&path=fifo")
        .send()
        .await
        .unwrap();
    assert_eq!(download.status(), 404);
}

#[tokio::test]
async fn odd_names_round_trip() {
    let app = TestApp::start().await;
    let code = r#"
import os
names = [b'new\nline', b'cr\r\nlf', b'quo"te', b'sp ace', b'100%.txt', b'%41', b'bytes\xff\xfe', 'right\u202eleft'.encode(), b'back\\slash', b"tick'", b'semi;colon', b'hash#q?', 'é日本'.encode()]
for n in names: open(n, 'wb').write(n)
"#;
    let answer = app.run("s", code).await;
    assert_eq!(
        answer["artifacts"].as_array().unwrap().len(),
        13,
        "{}",
        answer["sync"]
    );
    let contents: Vec<Vec<u8>> = names();
    for artifact in answer["artifacts"].as_array().unwrap() {
        let path = artifact["path"].as_str().unwrap();
        let (status, linked) = fetch_artifact(&app, &answer, path).await;
        assert_eq!(status, 200, "{path}");
        assert!(contents.contains(&linked), "{path}");
        let query = [("user_id", "u"), ("session_id", "s"), ("path", path)];
        let download = app
            .get("/v1/files/download")
            .query(&query)
            .send()
            .await
            .unwrap();
        assert_eq!(download.status(), 200, "{path}");
        assert_eq!(download.bytes().await.unwrap(), linked, "{path}");
    }
}

fn names() -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = [
        &b"new\nline"[..],
        b"cr\r\nlf",
        b"quo\"te",
        b"sp ace",
        b"100%.txt",
        b"%41",
        b"bytes\xff\xfe",
        b"back\\slash",
        b"tick'",
        b"semi;colon",
        b"hash#q?",
    ]
    .iter()
    .map(|name| name.to_vec())
    .collect();
    names.push("right\u{202e}left".into());
    names.push("é日本".into());
    names
}

#[tokio::test]
async fn closed_and_deep_trees_are_deleted() {
    let app = TestApp::start().await;
    let code = "import os\nfor i in range(300):\n    os.mkdir('d'); open('f', 'w'); os.chdir('d')\nos.chdir('/workspace'); os.mkdir('closed'); open('closed/f', 'w'); os.chmod('closed', 0)";
    app.run("s", code).await;
    let answer = app.session("sandbox/stop", "s").await;
    assert_eq!(answer["deleted"]["workspace"], true);
    crate::support::wait_for("the trash to be emptied", || {
        std::fs::read_dir(app.work_root().join("trash"))
            .unwrap()
            .next()
            .is_none()
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn more_files_than_allowed_are_left_out_and_said() {
    let app = TestApp::start_with(&[("MAX_TOTAL_FILES", "10")]).await;
    let answer = app
        .run("s", "for i in range(15): open(f'f{i:02}', 'w').write('x')")
        .await;
    assert_eq!(answer["artifacts"].as_array().unwrap().len(), 10);
    let skipped = answer["sync"]["skipped"].as_array().unwrap();
    assert_eq!(skipped.len(), 5);
    assert!(
        skipped[0]["reason"]
            .as_str()
            .unwrap()
            .contains("MAX_TOTAL_FILES")
    );
}

#[tokio::test]
async fn a_stored_file_that_a_limit_leaves_out_later_still_comes_back() {
    let app =
        TestApp::start_with(&[("MAX_TOTAL_FILES", "10"), ("DELETE_S3_ON_CLEANUP", "0")]).await;
    app.run("s", "open('z', 'w').write('stored')").await;
    app.run("s", "for i in range(10): open(f'a{i}', 'w').write('x')")
        .await;
    app.session("sandbox/stop", "s").await;
    assert_eq!(
        app.run("s", "open('z').read()").await["output"],
        "'stored'\n"
    );
}

#[tokio::test]
async fn swapping_a_file_for_a_link_while_it_is_downloaded_leaks_nothing() {
    let app = TestApp::start().await;
    let code = "
import os, ctypes, threading
open('a', 'w').write('mine'); os.symlink('/etc/passwd', 'b')
libc = ctypes.CDLL(None)
def swap():
    while not os.path.exists('stop'): libc.renameat2(-100, b'a', -100, b'b', 2)
threading.Thread(target=swap, daemon=True).start()";
    app.run("s", code).await;
    let mut seen = 0;
    for _ in 0..300 {
        let response = app
            .get("/v1/files/download?user_id=u&session_id=s&path=a")
            .send()
            .await
            .unwrap();
        match response.status().as_u16() {
            200 => {
                assert_eq!(response.text().await.unwrap(), "mine");
                seen += 1;
            }
            404 => {}
            other => panic!("status {other}"),
        }
    }
    assert!(
        seen > 0,
        "the file was never there: the test tested nothing"
    );
    app.run("s", "open('stop', 'w')").await;
}
