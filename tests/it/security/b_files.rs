//! Group B: what code in a sandbox may plant in its workspace, and what the host makes of it.
//! Invariant: the canaries lie outside every workspace, and no test may see one of their bytes.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::d_urls::{HostileServer, ingest, response, send};
use super::output;
use crate::support::{TestApp, answer, fetch_artifact, wait_for};

fn canary() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("secret"), "canary").unwrap();
    folder
}

fn assert_untouched(canary: &tempfile::TempDir) {
    let secret = std::fs::read_to_string(canary.path().join("secret")).unwrap();
    assert_eq!(secret, "canary");
    let count = std::fs::read_dir(canary.path()).unwrap().count();
    assert_eq!(count, 1, "something was written outside");
}

async fn statuses_of_reading(app: &TestApp, path: &str) -> [u16; 3] {
    let query = [("user_id", "u"), ("session_id", "s"), ("path", path)];
    let download = app.get("/v1/files/download").query(&query);
    let link = app.get("/v1/files/download-url").query(&query);
    let execute = json!({"user_id": "u", "session_id": "s", "code": "1", "inputs": [path]});
    [
        answer(download).await.0.as_u16(),
        answer(link).await.0.as_u16(),
        app.post("/v1/execute", execute).await.0.as_u16(),
    ]
}

fn skipped_paths(answer: &Value) -> Vec<&str> {
    let skipped = answer["sync"]["skipped"].as_array().unwrap();
    skipped
        .iter()
        .map(|skip| skip["path"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn case_11_links_are_never_listed_stored_or_downloaded_as_their_target() {
    let app = TestApp::start().await;
    let canary = canary();
    app.run("s", "import os\nos.symlink('/etc/passwd', 'file'); os.symlink('/etc', 'dir'); os.symlink('file', 'chain'); os.symlink('/proc/self/environ', 'env'); os.symlink('loop', 'loop')\nos.makedirs('d'); open('d/plain', 'w').write('x'); os.symlink('d', 'inside')").await;
    let workspace = app.only_workspace();
    symlink(canary.path(), workspace.join("outside")).unwrap();
    symlink(canary.path().join("secret"), workspace.join("secret")).unwrap();
    let answer = app.run("s", "1").await;
    assert_eq!(answer["artifacts"], json!([]));
    assert_eq!(
        skipped_paths(&answer),
        [
            "chain", "dir", "env", "file", "inside", "loop", "outside", "secret"
        ]
    );
    assert_eq!(app.list("s").await, ["d/plain"]);
    for path in [
        "file",
        "dir",
        "dir/passwd",
        "chain",
        "env",
        "loop",
        "outside/secret",
        "secret",
        "inside/plain",
    ] {
        assert_eq!(statuses_of_reading(&app, path).await, [404; 3], "{path}");
    }
    let manifest = std::fs::read_to_string(workspace.with_file_name("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    let text = manifest.to_string();
    assert!(
        text.contains("d/plain") && !text.contains("secret"),
        "{text}"
    );
}

#[tokio::test]
async fn case_11_the_tools_dialect_follows_no_link_either() {
    let app = TestApp::start().await;
    let call = async |name: &str, input: Value| {
        let body = json!({"context": {"workflow_run_id": "w"}, "input": input});
        app.post(&format!("/v1/tools/{name}"), body).await
    };
    let (_, opened) = call("sandbox_open", json!({})).await;
    let id = opened["sandbox_id"].clone();
    let canary = canary();
    let workspace = app.only_workspace();
    symlink(canary.path(), workspace.join("outside")).unwrap();
    symlink(canary.path().join("secret"), workspace.join("secret")).unwrap();
    for path in ["secret", "outside/secret"] {
        let read = call("sandbox_fs_read", json!({"sandbox_id": id, "path": path})).await;
        assert_eq!(read.0, 404, "{path}: {}", read.1);
    }
    let (_, listed) = call(
        "sandbox_fs_list",
        json!({"sandbox_id": id, "recursive": true}),
    )
    .await;
    assert_eq!(listed["entries"], json!([]), "{listed}");
    let listed = call(
        "sandbox_fs_list",
        json!({"sandbox_id": id, "path": "outside"}),
    )
    .await;
    assert_eq!(listed.0, 404, "{}", listed.1);
    let delete = json!({"sandbox_id": id, "path": "outside", "recursive": true});
    assert_eq!(
        call("sandbox_fs_delete", delete).await.0,
        200,
        "the link itself goes"
    );
    let write = json!({"sandbox_id": id, "path": "secret", "contents": "mine", "overwrite": true});
    assert_eq!(
        call("sandbox_fs_write", write).await.0,
        200,
        "the link itself is replaced"
    );
    assert_untouched(&canary);
}

#[tokio::test]
async fn case_12_an_upload_onto_a_planted_link_leaves_the_target_alone() {
    let app = TestApp::start().await;
    app.run("s", "1").await;
    let canary = canary();
    let workspace = app.only_workspace();
    symlink(canary.path().join("secret"), workspace.join("secret")).unwrap();
    symlink(canary.path(), workspace.join("outside")).unwrap();
    let (status, _) = app.upload("s", "secret", b"mine", None).await;
    assert_eq!(status, 200, "the link itself is replaced");
    assert_eq!(
        output(&app, "s", "print(open('secret').read())").await,
        "mine\n"
    );
    for folder in ["outside", "outside/deeper"] {
        let (status, _) = app.upload("s", "new", b"mine", Some(folder)).await;
        assert_eq!(status, 400, "{folder}: a linked folder is refused");
    }
    assert_untouched(&canary);
}

#[tokio::test]
async fn case_12_a_download_never_lands_on_a_planted_link() {
    let app = TestApp::start_with(&[("ALLOW_PRIVATE_URLS", "1")]).await;
    app.run("s", "import os; os.symlink('/workspace/target', 'data.csv'); os.mkdir('real'); os.symlink('real', 'linked')").await;
    let server = HostileServer::start(|_, stream| send(stream, &response("", b"new")));
    let answer = ingest(&app, &[server.url("/data.csv")]).await;
    assert_eq!(answer["uploaded"], json!(["data (1).csv"]));
    let body = json!({"user_id": "u", "session_id": "s", "urls": [server.url("/x")], "dest_dir": "linked"});
    let (_, answer) = app.post("/v1/files/upload-urls", body).await;
    assert_ne!(answer["status"], "success", "{answer}");
    let seen = app
        .run("s", "print(os.path.exists('target'), os.listdir('real'))")
        .await;
    assert_eq!(seen["output"], "False []\n");
}

#[tokio::test]
async fn case_13_deleting_a_session_leaves_what_its_links_point_at() {
    // Only where a workspace shares the host's file system can there be a hard link into it.
    for quota in ["auto", "soft"] {
        let app = TestApp::start_with(&[("WORKSPACE_QUOTA", quota)]).await;
        app.run("s", "import os; os.makedirs('d/e')").await;
        let canary = canary();
        let workspace = app.only_workspace();
        for place in ["outside", "d/outside", "d/e/outside"] {
            symlink(canary.path(), workspace.join(place)).unwrap();
        }
        symlink(canary.path().join("secret"), workspace.join("secret")).unwrap();
        if quota == "soft" {
            std::fs::hard_link(canary.path().join("secret"), workspace.join("hard")).unwrap();
        }
        let answer = app.session("sandbox/stop", "s").await;
        assert_eq!(answer["deleted"]["workspace"], true);
        wait_for_empty_trash(&app).await;
        assert_untouched(&canary);
    }
}

async fn wait_for_empty_trash(app: &TestApp) {
    wait_for("the trash to be emptied", || {
        let mut left = std::fs::read_dir(app.work_root().join("trash")).unwrap();
        left.next().is_none().then_some(())
    })
    .await;
}

/// Swaps `a` (a file) and `b` (a link) as fast as it can until `stop` is there.
const SWAPPING: &str = "
import ctypes, os, threading
open('a', 'w').write('mine'); os.symlink('/etc/passwd', 'b')
libc = ctypes.CDLL(None)
def swap():
    while not os.path.exists('stop'): libc.renameat2(-100, b'a', -100, b'b', 2)
threading.Thread(target=swap, daemon=True).start()";

#[tokio::test]
async fn case_14_a_thousand_downloads_during_swapping_leak_nothing() {
    let app = TestApp::start().await;
    app.run("s", SWAPPING).await;
    let mut counts = BTreeMap::new();
    for _ in 0..1000 {
        let request = app.get("/v1/files/download?user_id=u&session_id=s&path=a");
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        if status == 200 {
            assert_eq!(response.text().await.unwrap(), "mine");
        }
        *counts.entry(status).or_insert(0) += 1;
    }
    let both = [200, 404].map(|status| counts.contains_key(&status));
    assert_eq!(both, [true; 2], "the swap was never seen: {counts:?}");
    assert_eq!(counts.len(), 2, "{counts:?}");
}

#[tokio::test]
async fn case_14_swapping_folders_gets_nothing_out_of_links_uploads_and_syncs() {
    let app = TestApp::start().await;
    let canary = canary();
    app.run(
        "s",
        "import os; os.mkdir('a'); open('a/secret', 'w').write('mine')",
    )
    .await;
    symlink(canary.path(), app.only_workspace().join("b")).unwrap();
    app.run(
        "s",
        SWAPPING
            .lines()
            .filter(|line| !line.starts_with("open"))
            .collect::<Vec<_>>()
            .join("\n")
            .as_str(),
    )
    .await;
    for round in 0..100 {
        let query = [("user_id", "u"), ("session_id", "s"), ("path", "a/secret")];
        let download = app
            .get("/v1/files/download")
            .query(&query)
            .send()
            .await
            .unwrap();
        if download.status() == 200 {
            assert_eq!(download.text().await.unwrap(), "mine");
        }
        let (status, link) = answer(app.get("/v1/files/download-url").query(&query)).await;
        if status == 200 {
            let url = link["download_url"].as_str().unwrap();
            let stored = app.client.get(url).send().await.unwrap();
            assert_eq!(stored.text().await.unwrap(), "mine");
        }
        let (status, problem) = app
            .upload("s", &format!("new{round}"), b"x", Some("a"))
            .await;
        assert!(status == 200 || status == 400, "{status} {problem}");
    }
    assert_untouched(&canary);
}

#[tokio::test]
async fn case_15_pipes_and_sockets_are_skipped_and_hold_nothing_up() {
    let app = TestApp::start().await;
    let code = "import os, socket\nfor i in range(50): os.mkfifo(f'fifo{i}')\ns = socket.socket(socket.AF_UNIX); s.bind('socket')\nopen('plain', 'w').write('x')";
    let answer = app.run("s", code).await;
    assert_eq!(answer["status"], "ok", "{answer}");
    let reasons = answer["sync"]["skipped"].to_string();
    for word in ["FIFO", "socket"] {
        assert!(reasons.contains(word), "{reasons}");
    }
    assert_eq!(answer["artifacts"].as_array().unwrap().len(), 1);
    let began = Instant::now();
    assert_eq!(app.list("s").await, ["plain"]);
    for path in ["fifo0", "socket"] {
        assert_eq!(statuses_of_reading(&app, path).await, [404; 3], "{path}");
    }
    assert!(
        began.elapsed() < Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn case_16_a_sparse_file_of_ten_terabytes_is_skipped_and_costs_no_memory() {
    let app = TestApp::start().await;
    let code = "open('plain', 'w').write('x')\nwith open('hole', 'wb') as f: f.truncate(400 << 20)\ntry: open('giant', 'wb').truncate(10 << 40)\nexcept OSError as error: print(error.strerror)";
    assert_eq!(
        output(&app, "s", code).await,
        "File too large\n",
        "the file size limit"
    );
    // As if the limit had not held: the host is not to be impressed either.
    let giant = std::fs::File::create(app.only_workspace().join("giant")).unwrap();
    giant.set_len(10 << 40).unwrap();
    let before_kb = app.service_memory_kb();
    let began = Instant::now();
    let answer = app.run("s", "1").await;
    assert_eq!(skipped_paths(&answer), ["giant", "hole"]);
    assert_eq!(
        app.list("s").await,
        ["giant", "hole", "plain"],
        "they are there"
    );
    let (status, _) = app
        .get_json("/v1/files/download-url?user_id=u&session_id=s&path=giant")
        .await;
    assert_eq!(status, 400, "it is not to be stored");
    let mut download = app
        .get("/v1/files/download?user_id=u&session_id=s&path=giant")
        .send()
        .await
        .unwrap();
    for _ in 0..200 {
        download
            .chunk()
            .await
            .unwrap()
            .expect("it has no end in sight");
    }
    drop(download);
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    let grown_kb = app.service_memory_kb().saturating_sub(before_kb);
    assert!(grown_kb < 32 << 10, "the service grew by {grown_kb} KiB");
}

#[tokio::test]
async fn case_17_paths_that_leave_the_workspace_are_400_on_every_route_that_takes_one() {
    let app = TestApp::start().await;
    app.upload("s", "f", b"1", None).await;
    let (_, created) = app
        .post("/create_session", json!({"user_id": "u", "thread_id": "t"}))
        .await;
    let thread = created["session_id"].clone();
    let long = "n".repeat(300);
    for path in [
        "",
        "/",
        "..",
        "../x",
        "/etc/passwd",
        "a/../../x",
        "%2e%2e",
        "%2e%2e/x",
        "%2E%2E%2Fx/../y",
        ".%2e/x",
        "a//b",
        "a\0b",
        "./../x",
        "/workspace/../x",
        "/workspace//etc/passwd",
        "a/./b",
        "a/..",
        long.as_str(),
    ] {
        let named = |status: StatusCode, problem: &Value, field: &str| {
            let found = problem["field"].as_str().unwrap_or_default();
            assert!(
                status == 400 && found.starts_with(field),
                "{path:?} {field}: {status} {problem}"
            );
        };
        for route in ["/v1/files/download", "/v1/files/download-url"] {
            let pairs = [("user_id", "u"), ("session_id", "s"), ("path", path)];
            let (status, problem) = answer(app.get(route).query(&pairs)).await;
            named(status, &problem, "path");
        }
        let delete = json!({"user_id": "u", "session_id": "s", "paths": [path]});
        let (status, problem) = app.post("/v1/files/delete", delete).await;
        named(status, &problem, "paths");
        let execute = json!({"user_id": "u", "session_id": "s", "code": "1", "inputs": [path]});
        let (status, problem) = app.post("/v1/execute", execute).await;
        named(status, &problem, "inputs");
        if !path.is_empty() {
            let (status, problem) = app.upload("s", "g", b"1", Some(path)).await;
            named(status, &problem, "dest_dir");
            let urls = json!({"user_id": "u", "session_id": "s", "urls": ["http://example.com/"], "dest_dir": path});
            let (status, problem) = app.post("/v1/files/upload-urls", urls).await;
            named(status, &problem, "dest_dir");
        }
        let download = json!({"session_id": thread, "filename": path});
        assert_eq!(
            app.post("/download_file", download).await.0,
            400,
            "{path:?}"
        );
    }
    assert_eq!(app.list("s").await, ["f"]);
}

#[tokio::test]
async fn case_18_odd_names_round_trip_and_break_no_header() {
    let names: [&[u8]; 14] = [
        b"new\nline",
        b"cr\r\nlf: x",
        b"quo\"te",
        b"sp ace",
        b"100%.txt",
        b"%41",
        b"bytes\xff\xfe",
        b"back\\slash",
        b"tick'",
        b"semi;colon",
        b"hash#q?",
        "right\u{202e}left".as_bytes(),
        "é日本".as_bytes(),
        b"tab\there",
    ];
    let app = TestApp::start().await;
    let hex: Vec<String> = names.iter().map(hex::encode).collect();
    let code = format!("for name in map(bytes.fromhex, {hex:?}): open(name, 'wb').write(name)");
    let executed = app.run("s", &code).await;
    let artifacts = executed["artifacts"].as_array().unwrap();
    assert_eq!(artifacts.len(), names.len(), "{}", executed["sync"]);
    let mut seen = Vec::new();
    for artifact in artifacts {
        let path = artifact["path"].as_str().unwrap();
        let (status, linked) = fetch_artifact(&app, &executed, path).await;
        assert_eq!(status, 200, "{path}");
        let query = [("user_id", "u"), ("session_id", "s"), ("path", path)];
        let request = app.get("/v1/files/download").query(&query);
        let download = request.send().await.unwrap();
        assert_eq!(download.status(), 200, "{path}");
        let disposition = download.headers()["content-disposition"].to_str();
        let disposition = disposition.expect("the header is plain ASCII").to_owned();
        assert!(disposition.starts_with("attachment"), "{disposition}");
        assert_eq!(
            download.headers().get("x"),
            None,
            "a header was smuggled in"
        );
        assert_eq!(download.bytes().await.unwrap(), linked, "{path}");
        seen.push(linked);
    }
    seen.sort();
    let mut expected: Vec<Vec<u8>> = names.iter().map(|name| name.to_vec()).collect();
    expected.sort();
    assert_eq!(seen, expected, "each file is its own");
}

#[tokio::test]
async fn case_19_closed_and_deep_trees_are_deleted() {
    let app = TestApp::start().await;
    let code = "import os\nfor i in range(300):\n    os.mkdir('d'); open('f', 'w'); os.chdir('d')\nos.chdir('/workspace')\nos.makedirs('closed/in/side'); open('closed/in/f', 'w'); os.chmod('closed/in/side', 0); os.chmod('closed/in', 0); os.chmod('closed', 0); open('f', 'w'); os.chmod('f', 0)\nos.chmod('.', 0)";
    app.run("s", code).await;
    let answer = app.session("sandbox/stop", "s").await;
    assert_eq!(answer["deleted"]["workspace"], true);
    wait_for_empty_trash(&app).await;
}

#[tokio::test]
async fn case_19_a_folder_that_is_filled_while_it_is_deleted_is_refused_in_words() {
    let app = TestApp::start().await;
    let call = async |name: &str, input: Value| {
        let body = json!({"context": {"workflow_run_id": "w"}, "input": input});
        app.post(&format!("/v1/tools/{name}"), body).await
    };
    let id = call("sandbox_open", json!({})).await.1["sandbox_id"].clone();
    let filling = "
import os
os.makedirs('d/e')
open('filling', 'w')
number = 0
while True:
    number += 1
    try: open(f'd/e/{os.getpid()}-{number}', 'w').close()
    except OSError: os.makedirs('d/e', exist_ok=True)";
    let exec = json!({"sandbox_id": id, "cmd": ["python3", "-c", filling], "stream": true, "timeout_seconds": 60});
    assert_eq!(call("sandbox_exec", exec).await.0, 200);
    wait_for("the filling to begin", || {
        app.only_workspace().join("filling").exists().then_some(())
    })
    .await;
    for _ in 0..20 {
        let delete = json!({"sandbox_id": id, "path": "d", "recursive": true});
        let began = Instant::now();
        let (status, problem) = call("sandbox_fs_delete", delete).await;
        assert!(
            [200, 400, 404].contains(&status.as_u16()),
            "{status} {problem}"
        );
        assert!(
            began.elapsed() < Duration::from_secs(15),
            "{:?}",
            began.elapsed()
        );
    }
}

#[tokio::test]
async fn case_15_listing_ten_thousand_folders_holds_few_descriptors() {
    let app = TestApp::start_with(&[("MAX_TOTAL_FILES", "20000")]).await;
    let call = async |name: &str, input: Value| {
        let body = json!({"context": {"workflow_run_id": "w"}, "input": input});
        app.post(&format!("/v1/tools/{name}"), body).await
    };
    let id = call("sandbox_open", json!({})).await.1["sandbox_id"].clone();
    let workspace = app.only_workspace();
    for number in 0..9000 {
        std::fs::create_dir(workspace.join(format!("d{number}"))).unwrap();
    }
    let pid = app.service_pid();
    let done = std::sync::atomic::AtomicBool::new(false);
    let watch = async {
        let mut most = 0;
        while !done.load(std::sync::atomic::Ordering::Relaxed) {
            let open = std::fs::read_dir(format!("/proc/{pid}/fd"))
                .unwrap()
                .count();
            most = most.max(open);
            tokio::task::yield_now().await;
        }
        most
    };
    let list = async {
        let listed = call(
            "sandbox_fs_list",
            json!({"sandbox_id": id, "recursive": true}),
        )
        .await;
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        listed
    };
    let (most, (status, listed)) = tokio::join!(watch, list);
    assert_eq!(status, 200, "{listed}");
    assert_eq!(listed["entries"].as_array().unwrap().len(), 9000);
    assert!(most < 300, "{most} descriptors were open");
}
