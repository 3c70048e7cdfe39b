//! The worst day: the service is killed again and again, at random moments, while callers work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::history::{History, stored_files, wait_for_nothing_more};
use crate::support::{TestApp, free_port};

/// More with CELLBLOCK_KILL_ROUNDS.
const ROUNDS: u64 = 50;
const SESSIONS: usize = 3;
/// Each file is written again and again.
const FILES: u64 = 20;
const MOST_MS_BEFORE_A_KILL: u64 = 120;

struct Load {
    client: reqwest::Client,
    base: String,
    stop: AtomicBool,
    answers: AtomicU64,
    numbers: AtomicU64,
}

impl Load {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// None if no answer came, or one that says that the request was not carried out.
    async fn post(&self, path: &str, body: Value) -> Option<Value> {
        let request = self.client.post(format!("{}{path}", self.base)).json(&body);
        self.answer(request).await
    }

    async fn answer(&self, request: reqwest::RequestBuilder) -> Option<Value> {
        let answer = match request.send().await {
            Ok(response) if response.status() == 200 => response.json().await.ok(),
            _ => None,
        };
        match &answer {
            Some(_) => _ = self.answers.fetch_add(1, Ordering::Relaxed),
            // The service is away: what else would there be to wait for?
            None => tokio::time::sleep(Duration::from_millis(20)).await,
        }
        answer
    }
}

/// Runs cells that take note of themselves, in a variable and in a file.
async fn run_cells(load: Arc<Load>, session: String, history: Arc<Mutex<History>>) {
    while load.goes_on() {
        let number = load.number();
        let path = format!("cell{}", number % FILES);
        let code = format!("runs.append({number})\nopen('{path}', 'w').write('{number}')");
        let mut known = history.lock().await;
        known.runs.sent.insert(number);
        known
            .files
            .entry(path.clone())
            .or_default()
            .sent
            .insert(number);
        drop(known);
        let body = json!({"user_id": "u", "session_id": session, "code": code});
        let Some(answer) = load.post("/v1/execute", body).await else {
            continue;
        };
        let mut known = history.lock().await;
        assert_eq!(answer["status"], "ok", "{answer}");
        known.runs.acknowledged.insert(number);
        known
            .files
            .entry(path)
            .or_default()
            .acknowledged
            .insert(number);
        known.lost_said += u64::from(answer["state"] == "lost");
    }
}

/// Uploads files of its own into the same session.
async fn upload_files(load: Arc<Load>, session: String, history: Arc<Mutex<History>>) {
    while load.goes_on() {
        let number = load.number();
        let path = format!("upload{}", number % FILES);
        let writes = |known: &mut History| known.files.entry(path.clone()).or_default().clone();
        let mut known = history.lock().await;
        let mut ours = writes(&mut known);
        ours.sent.insert(number);
        known.files.insert(path.clone(), ours);
        drop(known);
        let part = reqwest::multipart::Part::text(number.to_string()).file_name(path.clone());
        let form = reqwest::multipart::Form::new()
            .text("user_id", "u")
            .text("session_id", session.clone())
            .part("file", part);
        let request = load.client.post(format!("{}/v1/files/upload", load.base));
        if load.answer(request.multipart(form)).await.is_some() {
            let mut known = history.lock().await;
            let writes = known.files.entry(path).or_default();
            writes.acknowledged.insert(number);
        }
    }
}

/// Makes sessions, uses them once and stops them; gives those whose stop nobody acknowledged.
async fn come_and_go(load: Arc<Load>) -> Vec<String> {
    let mut unsure = Vec::new();
    while load.goes_on() {
        let session = format!("short{}", load.number());
        let body =
            json!({"user_id": "u", "session_id": session, "code": "open('f', 'w').write('x')"});
        let _made_or_not = load.post("/v1/execute", body).await;
        let ids = json!({"user_id": "u", "session_id": session});
        if load.post("/v1/sandbox/stop", ids).await.is_none() {
            unsure.push(session);
        }
    }
    unsure
}

/// A little generator of our own, so that a run can be repeated: the seed is printed.
struct Dice(u64);

impl Dice {
    fn seeded() -> Self {
        let given = std::env::var("CELLBLOCK_KILL_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok());
        let clock = || {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap()
                .as_nanos() as u64
        };
        let seed = given.unwrap_or_else(clock);
        eprintln!("CELLBLOCK_KILL_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[tokio::test]
async fn case_44_fifty_kills_under_load_lose_nothing_double_nothing_and_leave_nothing_behind() {
    let rounds =
        std::env::var("CELLBLOCK_KILL_ROUNDS").map_or(ROUNDS, |text| text.parse().unwrap());
    let port = free_port().to_string();
    let settings = [
        ("PORT", port.as_str()),
        ("SANDBOX_POOL_SIZE", "1"),
        ("SANDBOX_REAPER_INTERVAL", "1"),
        ("LOG_LEVEL", "info"),
    ];
    let mut app = TestApp::start_with(&settings).await;
    let mut containers = Vec::new();
    for n in 0..SESSIONS {
        app.run(&format!("s{n}"), "runs = []").await;
        containers.push(app.container_of(&format!("s{n}")).await);
    }
    let load = Arc::new(Load {
        client: app.client.clone(),
        base: app.base.clone(),
        stop: AtomicBool::new(false),
        answers: AtomicU64::new(0),
        numbers: AtomicU64::new(1),
    });
    let histories: Vec<Arc<Mutex<History>>> = (0..SESSIONS).map(|_| Arc::default()).collect();
    let mut callers = Vec::new();
    for (n, history) in histories.iter().enumerate() {
        let (session, history) = (format!("s{n}"), history.clone());
        callers.push(tokio::spawn(run_cells(
            load.clone(),
            session.clone(),
            history.clone(),
        )));
        if n == 0 {
            callers.push(tokio::spawn(upload_files(load.clone(), session, history)));
        }
    }
    let short_lived = tokio::spawn(come_and_go(load.clone()));
    let mut dice = Dice::seeded();
    for _ in 0..rounds {
        let before = load.answers.load(Ordering::Relaxed);
        while load.answers.load(Ordering::Relaxed) < before + 5 {
            assert!(
                !callers.iter().any(|caller| caller.is_finished()),
                "a caller gave up"
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The moment of the fault is what is random here, not a wait for anything.
        tokio::time::sleep(Duration::from_millis(dice.below(MOST_MS_BEFORE_A_KILL))).await;
        app.kill();
        app.launch().await;
    }
    load.stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    for session in short_lived.await.unwrap() {
        app.session("sandbox/stop", &session).await;
    }
    for (n, history) in histories.iter().enumerate() {
        let session = format!("s{n}");
        history.lock().await.check(&app, &session).await;
        assert_eq!(
            app.container_of(&session).await,
            containers[n],
            "the same sandbox all along"
        );
    }
    wait_for_nothing_more(&app, SESSIONS, 1).await;
    for n in 0..SESSIONS {
        app.session("sandbox/stop", &format!("s{n}")).await;
    }
    wait_for_nothing_more(&app, 0, 1).await;
    assert_eq!(
        stored_files(&app),
        Vec::<std::path::PathBuf>::new(),
        "objects without a session"
    );
}
