//! Files from URLs, over real sockets on loopback.

use std::io::{Read, Write};
use std::net::TcpListener;

use serde_json::{Value, json};

use crate::support::TestApp;

/// Answers every request with what `answer` gives for its path, until the test ends.
fn serve(answer: fn(&str) -> Vec<u8>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut head = [0; 4096];
                let length = stream.read(&mut head).unwrap_or(0);
                let text = String::from_utf8_lossy(&head[..length]).into_owned();
                let path = text.split(' ').nth(1).unwrap_or("/").to_owned();
                let _hung_up = stream.write_all(&answer(&path));
            });
        }
    });
    port
}

fn response(headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n{headers}\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

async fn ingest(app: &TestApp, urls: &[String], dest_dir: Option<&str>) -> Value {
    let mut body = json!({"user_id": "u", "session_id": "s", "urls": urls});
    if let Some(dest_dir) = dest_dir {
        body["dest_dir"] = json!(dest_dir);
    }
    let (status, answer) = app.post("/v1/files/upload-urls", body).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

#[tokio::test]
async fn files_come_in_under_their_names_and_the_same_name_twice_gets_a_number() {
    let app = TestApp::start_with(&[("ALLOW_PRIVATE_URLS", "1")]).await;
    let port = serve(|path| match path {
        "/by-header" => response(
            "content-disposition: attachment; filename=\"from header.csv\"\r\n",
            b"1",
        ),
        path if path.starts_with("/by-query") => response("", b"2"),
        "/gone" => b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec(),
        "/evil" => response(
            "content-disposition: attachment; filename=\"../../etc/evil\"\r\n",
            b"4",
        ),
        _ => response("", path_body()),
    });
    let url = |path: &str| format!("http://127.0.0.1:{port}{path}");
    let urls = [
        url("/data.csv"),
        url("/other/data.csv"),
        url("/by-header"),
        url("/by-query?Content-Disposition=filename%3D%22my%20image.jpg%22"),
        url("/gone"),
        url("/evil"),
    ];
    let answer = ingest(&app, &urls, Some("in")).await;
    assert_eq!(answer["status"], "partial_success");
    let uploaded: Vec<&str> = answer["uploaded"]
        .as_array()
        .unwrap()
        .iter()
        .map(|path| path.as_str().unwrap())
        .collect();
    assert_eq!(
        uploaded,
        [
            "in/data.csv",
            "in/data (1).csv",
            "in/from header.csv",
            "in/my image.jpg",
            "in/evil"
        ]
    );
    assert_eq!(answer["errors"][0]["source_url"], urls[4]);
    assert!(
        answer["errors"][0]["error"]
            .as_str()
            .unwrap()
            .contains("404")
    );
    assert_eq!(
        app.run("s", "open('in/data (1).csv').read()").await["artifacts"],
        json!([])
    );
}

fn path_body() -> &'static [u8] {
    b"3"
}
