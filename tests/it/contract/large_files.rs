//! Files that go to the store in parts, and are hashed on the way.

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::support::{TestApp, fetch_artifact};

/// Two parts.
const SIZE_BYTES: usize = 10_000_000;

fn written(answer: &Value) -> String {
    let artifact = &answer["artifacts"][0];
    assert_eq!(artifact["path"], "large.bin", "{answer}");
    artifact["sha256"].as_str().unwrap().to_owned()
}

fn hash_of(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

#[tokio::test]
async fn a_large_file_is_stored_with_its_hash_and_not_again_while_it_stays_the_same() {
    let app = TestApp::start().await;
    let write = |byte: char| {
        format!("with open('large.bin', 'wb') as f: f.write(b'{byte}' * {SIZE_BYTES})")
    };
    let first = app.run("s", &write('a')).await;
    assert_eq!(first["sync"]["uploaded"], 1, "{first}");
    assert_eq!(written(&first), hash_of(&vec![b'a'; SIZE_BYTES]));
    assert!(fetch_artifact(&app, &first, "large.bin").await.1 == vec![b'a'; SIZE_BYTES]);

    let same = app.run("s", &write('a')).await;
    assert_eq!(same["sync"]["uploaded"], 0, "{same}");
    assert_eq!(written(&same), written(&first));

    let changed = app.run("s", &write('b')).await;
    assert_eq!(changed["sync"]["uploaded"], 1, "{changed}");
    assert_eq!(written(&changed), hash_of(&vec![b'b'; SIZE_BYTES]));
    assert!(fetch_artifact(&app, &changed, "large.bin").await.1 == vec![b'b'; SIZE_BYTES]);
}

#[tokio::test]
async fn a_large_file_that_is_written_all_the_time_is_left_out_until_it_rests() {
    let app = TestApp::start().await;
    let code = format!(
        "import os, threading\nfile = os.open('large.bin', os.O_RDWR | os.O_CREAT)\nos.ftruncate(file, {SIZE_BYTES})\n\
         os.pwrite(file, b'x' * {SIZE_BYTES}, 0)\nstop = threading.Event()\ndef write():\n    turn = 0\n    while not stop.wait(0.001):\n\
         \x20       turn += 1\n        os.pwrite(file, b'%d' % (turn % 10), turn % {SIZE_BYTES})\n\
         writer = threading.Thread(target=write); writer.start()"
    );
    let busy = app.run("s", &code).await;
    assert_eq!(busy["status"], "ok", "{busy}");
    assert_eq!(busy["sync"]["uploaded"], 0, "{busy}");
    assert_eq!(
        busy["sync"]["skipped"][0]["reason"],
        "the file kept changing while it was read"
    );
    let rests = app.run("s", "stop.set(); writer.join()").await;
    assert_eq!(rests["sync"]["uploaded"], 1, "{rests}");
    let stored = fetch_artifact(&app, &rests, "large.bin").await.1;
    assert_eq!(written(&rests), hash_of(&stored));
    let inside = "import hashlib; hashlib.sha256(open('large.bin', 'rb').read()).hexdigest()";
    let hash_inside = app.run("s", inside).await;
    assert_eq!(hash_inside["output"], format!("'{}'\n", hash_of(&stored)));
}
