//! An engine that hangs, goes away and comes back, seen through a socket of our own in front of the real one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::watch;

use crate::docker::{exists, start_with};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mood {
    Passing,
    /// Connections stand, nothing comes back.
    Hanging,
    /// Nobody is there.
    Gone,
}

/// Passes everything on to the engine, as long as it is in the mood.
struct EngineProxy {
    folder: tempfile::TempDir,
    mood: Arc<watch::Sender<Mood>>,
}

impl EngineProxy {
    fn start() -> Self {
        let proxy = Self {
            folder: tempfile::tempdir().unwrap(),
            mood: Arc::new(watch::Sender::new(Mood::Passing)),
        };
        // Bound before the service is started, which looks for an engine first of all.
        let listener = UnixListener::bind(proxy.socket()).unwrap();
        tokio::spawn(accept(listener, proxy.mood.clone()));
        proxy
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("docker.sock")
    }

    fn host(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// An address from which the service cannot tell where the engine runs, so that it bridges kernel links over exec.
    async fn host_far_away(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mood = self.mood.clone();
        tokio::spawn(async move {
            loop {
                let (caller, _) = listener.accept().await.unwrap();
                if *mood.borrow() != Mood::Gone {
                    tokio::spawn(pass_on(caller, mood.subscribe()));
                }
            }
        });
        format!("tcp://{address}")
    }

    fn set(&self, mood: Mood) {
        self.mood.send_replace(mood);
    }
}

async fn accept(listener: UnixListener, mood: Arc<watch::Sender<Mood>>) {
    loop {
        let (caller, _) = listener.accept().await.unwrap();
        if *mood.borrow() != Mood::Gone {
            tokio::spawn(pass_on(caller, mood.subscribe()));
        }
    }
}

async fn pass_on(mut caller: impl AsyncRead + AsyncWrite + Unpin, mut mood: watch::Receiver<Mood>) {
    let mut engine = UnixStream::connect(Path::new("/var/run/docker.sock"))
        .await
        .unwrap();
    loop {
        let now = *mood.borrow_and_update();
        match now {
            Mood::Gone => return,
            Mood::Hanging => _ = mood.changed().await,
            Mood::Passing => tokio::select! {
                _ = mood.changed() => {}
                _ = tokio::io::copy_bidirectional(&mut caller, &mut engine) => return,
            },
        }
    }
}

/// The end of a test waits for what it started and cannot serve the proxy meanwhile.
fn clean_up_without_proxy(app: &mut crate::support::TestApp) {
    app.set("DOCKER_HOST", "unix:///var/run/docker.sock");
}

#[tokio::test]
async fn case_45_an_engine_that_hangs_or_is_gone_gives_503_and_the_service_heals_by_itself() {
    let proxy = EngineProxy::start();
    let host = proxy.host();
    let mut app = start_with(&[
        ("DOCKER_HOST", host.as_str()),
        ("SANDBOX_REAPER_INTERVAL", "1"),
    ])
    .await;
    app.run("warm", "x = 0").await;
    for (round, mood) in [Mood::Hanging, Mood::Gone].into_iter().enumerate() {
        proxy.set(mood);
        // What is running needs no engine.
        assert_eq!(
            app.run("warm", "x += 1; x").await["output"],
            format!("{}\n", round + 1)
        );
        let new = json!({"user_id": "u", "session_id": format!("new{round}"), "code": "2 + 2"});
        let (status, problem) = app.post("/v1/execute", new.clone()).await;
        assert_eq!(
            (status.as_u16(), &problem["code"]),
            (503, &json!("unavailable")),
            "{mood:?}"
        );
        assert!(
            problem["detail"]
                .as_str()
                .unwrap()
                .contains("Docker engine does not answer"),
            "{problem}"
        );
        let (status, health) = app.get_json("/health").await;
        assert_eq!(
            (status.as_u16(), &health["status"]),
            (503, &json!("degraded")),
            "{health}"
        );
        // A stop that cannot end the container says so and keeps the session.
        let warm = json!({"user_id": "u", "session_id": "warm"});
        let (status, _) = app.post("/v1/sandbox/stop", warm).await;
        assert_eq!(status.as_u16(), 503, "{mood:?}");
        proxy.set(Mood::Passing);
        let (status, answer) = app.post("/v1/execute", new).await;
        assert_eq!(
            (status.as_u16(), &answer["output"]),
            (200, &json!("4\n")),
            "{mood:?}"
        );
        assert_eq!(app.get_json("/health").await.0, 200);
        assert_eq!(app.run("warm", "x").await["state"], "kept");
    }
    clean_up_without_proxy(&mut app);
}

#[tokio::test]
async fn case_45_a_sandbox_that_ended_while_the_engine_was_silent_is_noticed_when_it_speaks_again()
{
    let proxy = EngineProxy::start();
    let host = proxy.host();
    let mut app = start_with(&[
        ("DOCKER_HOST", host.as_str()),
        ("SANDBOX_REAPER_INTERVAL", "3600"),
    ])
    .await;
    app.run("s", "x = 1").await;
    let container = app.container_of("s").await;
    proxy.set(Mood::Gone);
    crate::support::docker(&["pause", &container]);
    tokio::time::sleep(Duration::from_millis(300)).await;
    proxy.set(Mood::Passing);
    crate::support::wait_for("the paused sandbox to go", || {
        (!exists(&container)).then_some(())
    })
    .await;
    let answer = app.run("s", "'x' in globals()").await;
    assert_eq!(
        (&answer["output"], &answer["state"]),
        (&json!("False\n"), &json!("lost"))
    );
    clean_up_without_proxy(&mut app);
}

#[tokio::test]
async fn case_45_a_restart_while_the_engine_is_away_waits_for_it_and_keeps_the_variables() {
    let proxy = EngineProxy::start();
    let host = proxy.host();
    let mut app = start_with(&[("DOCKER_HOST", host.as_str())]).await;
    app.set("SANDBOX_BACKEND", "auto");
    app.run("s", "x = 1").await;
    let container = app.container_of("s").await;
    app.kill();
    proxy.set(Mood::Gone);
    let engine_returns = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        proxy.set(Mood::Passing);
    };
    tokio::join!(app.launch(), engine_returns);
    let answer = app.run("s", "x").await;
    assert_eq!(
        (&answer["output"], &answer["state"]),
        (&json!("1\n"), &json!("kept"))
    );
    assert_eq!(app.container_of("s").await, container);
    clean_up_without_proxy(&mut app);
}

#[tokio::test]
async fn case_45_a_living_sandbox_behind_a_bridge_outlives_an_engine_that_is_away() {
    let proxy = EngineProxy::start();
    let host = proxy.host_far_away().await;
    let mut app = start_with(&[
        ("DOCKER_HOST", host.as_str()),
        ("SANDBOX_REAPER_INTERVAL", "1"),
    ])
    .await;
    app.run("s", "x = 41").await;
    let container = app.container_of("s").await;
    proxy.set(Mood::Gone);
    while app.status("s").await.1["kernel_answers"] == true {}
    let cell = json!({"user_id": "u", "session_id": "s", "code": "x += 1; x"});
    for _ in 0..2 {
        let (status, problem) = app.post("/v1/execute", cell.clone()).await;
        assert_eq!(status.as_u16(), 503, "{problem}");
    }
    // Back while somebody waits.
    let engine_returns = async {
        tokio::time::sleep(Duration::from_secs(4)).await;
        proxy.set(Mood::Passing);
    };
    let (mut waited, ()) = tokio::join!(app.post("/v1/execute", cell.clone()), engine_returns);
    if waited.0.as_u16() == 503 {
        waited = app.post("/v1/execute", cell).await;
    }
    assert_eq!(
        (&waited.1["output"], &waited.1["state"]),
        (&json!("42\n"), &json!("kept")),
        "{waited:?}"
    );
    assert_eq!(app.container_of("s").await, container);
    clean_up_without_proxy(&mut app);
}
