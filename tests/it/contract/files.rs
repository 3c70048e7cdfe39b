//! Artifacts, uploads, downloads, links, deletes and inputs.

use serde_json::json;

use crate::support::{TestApp, fetch_artifact};

#[tokio::test]
async fn a_file_written_by_a_cell_comes_back_as_a_link_that_any_client_opens() {
    let app = TestApp::start().await;
    let answer = app
        .run("s", "open('out.csv', 'w').write('a,b\\n1,2\\n'); None")
        .await;
    let artifact = &answer["artifacts"][0];
    assert_eq!(
        (
            &artifact["path"],
            &artifact["size_bytes"],
            &artifact["mime_type"]
        ),
        (&json!("out.csv"), &json!(8), &json!("text/csv"))
    );
    assert_eq!(artifact["sha256"].as_str().unwrap().len(), 64);
    assert_eq!(
        fetch_artifact(&app, &answer, "out.csv").await.1,
        b"a,b\n1,2\n"
    );
    assert_eq!(
        answer["sync"],
        json!({"uploaded": 1, "unchanged": 0, "skipped": []})
    );
}

#[tokio::test]
async fn only_what_a_cell_made_or_touched_is_its_artifact() {
    let app = TestApp::start().await;
    app.run("s", "open('a', 'w').write('1'); open('b', 'w').write('1')")
        .await;
    let nothing = app.run("s", "open('a').read()").await;
    assert_eq!(nothing["artifacts"], json!([]));
    assert_eq!(nothing["sync"]["unchanged"], 2);
    let changed = app.run("s", "open('a', 'w').write('2')").await;
    assert_eq!(changed["artifacts"].as_array().unwrap().len(), 1);
    assert_eq!(changed["sync"]["uploaded"], 1);
    let same_content = app.run("s", "open('a', 'w').write('2')").await;
    assert_eq!(
        same_content["artifacts"][0]["path"], "a",
        "written again, so it is linked again"
    );
    assert_eq!(
        same_content["sync"]["uploaded"], 0,
        "but the same content is not stored twice"
    );
    let sneaky = app.run("s", "import os\ns = os.stat('a'); open('a', 'w').write('3'); os.utime('a', ns=(s.st_atime_ns, s.st_mtime_ns))").await;
    assert_eq!(
        sneaky["sync"]["uploaded"], 1,
        "a change with the old time stamp is found"
    );
}

#[tokio::test]
async fn an_upload_is_there_for_the_cell_and_no_artifact_of_it() {
    let app = TestApp::start().await;
    let (status, answer) = app.upload("s", "data.csv", b"1,2", Some("in/put")).await;
    assert_eq!(
        (status.as_u16(), &answer),
        (
            200,
            &json!({"status": "success", "uploaded": ["in/put/data.csv"]})
        )
    );
    let cell = app.run("s", "open('in/put/data.csv').read()").await;
    assert_eq!(
        (&cell["output"], &cell["artifacts"]),
        (&json!("'1,2'\n"), &json!([]))
    );
    let writable = app
        .run(
            "s",
            "open('in/put/data.csv', 'a').write('!'); open('in/put/new', 'w').write('x')",
        )
        .await;
    assert_eq!(
        writable["artifacts"].as_array().unwrap().len(),
        2,
        "the sandbox's user owns what was uploaded"
    );
    let (status, _) = app
        .upload("s", "data.csv", b"again", Some("/workspace/in/put/"))
        .await;
    assert_eq!(status, 200);
    assert_eq!(
        app.run("s", "open('in/put/data.csv').read()").await["output"],
        "'again'\n"
    );
}

#[tokio::test]
async fn an_upload_over_the_limit_is_refused_and_leaves_nothing() {
    let app = TestApp::start_with(&[("MAX_UPLOAD_BYTES", "1000"), ("MAX_TOTAL_FILES", "2")]).await;
    let (status, problem) = app.upload("s", "big", &[0; 1001], None).await;
    assert_eq!(
        (status.as_u16(), &problem["code"]),
        (413, &json!("too_large"))
    );
    assert!(
        std::fs::read_dir(app.only_workspace())
            .unwrap()
            .next()
            .is_none()
    );
    app.upload("s", "a", b"1", None).await;
    app.upload("s", "b", b"1", None).await;
    let (status, problem) = app.upload("s", "c", b"1", None).await;
    assert_eq!(
        (status.as_u16(), &problem["code"], &problem["limit"]),
        (507, &json!("quota_exceeded"), &json!(2))
    );
}

#[tokio::test]
async fn a_download_is_an_attachment_and_serves_ranges() {
    let app = TestApp::start().await;
    app.upload("s", "page.html", b"0123456789", None).await;
    let path = "/v1/files/download?user_id=u&session_id=s&path=page.html";
    let whole = app.get(path).send().await.unwrap();
    assert_eq!(whole.status(), 200);
    let header = |name: &str| whole.headers()[name].to_str().unwrap().to_owned();
    assert!(header("content-disposition").starts_with("attachment"));
    assert_eq!(header("x-content-type-options"), "nosniff");
    assert_eq!(header("content-type"), "application/octet-stream");
    assert_eq!(header("content-length"), "10");
    assert_eq!(whole.bytes().await.unwrap(), "0123456789");
    let part = app
        .get(path)
        .header("range", "bytes=2-4")
        .send()
        .await
        .unwrap();
    assert_eq!(
        (
            part.status().as_u16(),
            part.headers()["content-range"].to_str().unwrap()
        ),
        (206, "bytes 2-4/10")
    );
    assert_eq!(part.bytes().await.unwrap(), "234");
    assert_eq!(
        app.get(path)
            .header("range", "bytes=10-")
            .send()
            .await
            .unwrap()
            .status(),
        416
    );
    assert_eq!(
        app.get("/v1/files/download?user_id=u&session_id=s&path=none")
            .send()
            .await
            .unwrap()
            .status(),
        404
    );
    assert_eq!(
        app.get("/v1/files/download?user_id=u&session_id=never&path=x")
            .send()
            .await
            .unwrap()
            .status(),
        404
    );
}

#[tokio::test]
async fn the_list_is_recursive_and_sorted() {
    let app = TestApp::start().await;
    assert_eq!(app.list("s").await, Vec::<String>::new());
    app.run(
        "s",
        "import os; os.makedirs('b/c'); [open(p, 'w').write('1') for p in ('z', 'b/c/d', 'a')]",
    )
    .await;
    assert_eq!(app.list("s").await, ["a", "b/c/d", "z"]);
    let (_, answer) = app.get_json("/v1/files/list?user_id=u&session_id=s").await;
    assert_eq!(answer["files"][0]["size_bytes"], 1);
    assert!(answer["files"][0]["mtime"].as_f64().unwrap() > 1.6e9);
}

#[tokio::test]
async fn a_download_url_syncs_first_and_honours_its_lifetime() {
    let app = TestApp::start().await;
    app.run("s", "open('f', 'w').write('old')").await;
    std::fs::write(
        app.only_workspace().join("f"),
        "changed since the last sync",
    )
    .unwrap();
    let (status, answer) = app
        .get_json("/v1/files/download-url?user_id=u&session_id=s&path=f&expires_in=60")
        .await;
    assert_eq!(
        (
            status.as_u16(),
            &answer["status"],
            &answer["path"],
            &answer["expires_in"]
        ),
        (200, &json!("success"), &json!("f"), &json!(60))
    );
    let link = answer["download_url"].as_str().unwrap();
    assert!(link.contains("X-Amz-Expires=60"));
    assert_eq!(
        app.client
            .get(link)
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap(),
        "changed since the last sync"
    );
    let altered = link.replace("X-Amz-Expires=60", "X-Amz-Expires=6000");
    assert_eq!(app.client.get(altered).send().await.unwrap().status(), 403);
    let (status, _) = app
        .get_json("/v1/files/download-url?user_id=u&session_id=s&path=nowhere")
        .await;
    assert_eq!(status, 404);
}

#[tokio::test]
async fn a_deleted_file_is_gone_and_its_object_stays_unless_the_setting_says_otherwise() {
    for (setting, stored) in [("0", true), ("1", false)] {
        let app = TestApp::start_with(&[("DELETE_S3_ON_DELETE", setting)]).await;
        let answer = app.run("s", "open('f', 'w').write('x')").await;
        let body = json!({"user_id": "u", "session_id": "s", "paths": ["f", "never-was"]});
        let (status, deleted) = app.post("/v1/files/delete", body).await;
        assert_eq!(
            (status.as_u16(), &deleted),
            (200, &json!({"status": "success", "deleted": ["f"]}))
        );
        assert_eq!(app.list("s").await, Vec::<String>::new());
        let fetched = fetch_artifact(&app, &answer, "f").await.0;
        assert_eq!(
            fetched == 200,
            stored,
            "DELETE_S3_ON_DELETE={setting}: {fetched}"
        );
    }
}

#[tokio::test]
async fn an_input_that_is_only_stored_is_brought_back_and_one_that_is_nowhere_is_named() {
    let app = TestApp::start().await;
    app.run("s", "open('data', 'w').write('42')").await;
    app.run("s", "import os; os.remove('data')").await;
    let answer = app
        .run_with(
            "s",
            "open('data').read()",
            json!({"inputs": ["/workspace/data"]}),
        )
        .await;
    assert_eq!(
        (&answer["output"], &answer["artifacts"]),
        (&json!("'42'\n"), &json!([]))
    );
    let body =
        json!({"user_id": "u", "session_id": "s", "code": "1", "inputs": ["data", "nowhere.txt"]});
    let (status, problem) = app.post("/v1/execute", body).await;
    assert_eq!(status, 404);
    assert!(problem["detail"].as_str().unwrap().contains("nowhere.txt"));
}

#[tokio::test]
async fn a_file_of_many_parts_is_stored_and_restored_whole() {
    let settings = [("DELETE_S3_ON_CLEANUP", "0")];
    let app = TestApp::start_with(&settings).await;
    let code = "import hashlib, random\nrandom.seed(1)\ndata = random.randbytes(20 << 20)\nopen('big.bin', 'wb').write(data)\nprint(hashlib.sha256(data).hexdigest())";
    let answer = app
        .run_with("s", code, json!({"timeout_seconds": 50}))
        .await;
    let hash = answer["stdout"].as_str().unwrap().trim();
    assert_eq!(answer["artifacts"][0]["sha256"], hash, "{}", answer["sync"]);
    let (status, bytes) = fetch_artifact(&app, &answer, "big.bin").await;
    assert_eq!((status.as_u16(), bytes.len()), (200, 20 << 20));
    app.session("sandbox/stop", "s").await;
    let code = "import hashlib; print(hashlib.sha256(open('big.bin', 'rb').read()).hexdigest())";
    let answer = app
        .run_with("s", code, json!({"timeout_seconds": 50}))
        .await;
    assert_eq!(answer["stdout"].as_str().unwrap().trim(), hash);
}

#[tokio::test]
async fn a_file_that_becomes_a_folder_and_back_stays_in_step_with_the_store() {
    let app = TestApp::start().await;
    app.run("s", "open('a', 'w').write('file')").await;
    let folder = app
        .run(
            "s",
            "import os, shutil; os.remove('a'); os.mkdir('a'); open('a/b', 'w').write('inner')",
        )
        .await;
    assert_eq!(fetch_artifact(&app, &folder, "a/b").await.1, b"inner");
    let file = app
        .run("s", "shutil.rmtree('a'); open('a', 'w').write('again')")
        .await;
    assert_eq!(fetch_artifact(&app, &file, "a").await.1, b"again");
}
