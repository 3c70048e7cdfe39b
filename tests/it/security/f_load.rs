//! Group F: code that takes all it can get, and callers that ask all at once.
//! That neighbours keep their speed is measured elsewhere (docs/PERFORMANCE.md); here they must be answered at all.
//! Invariant: what one sandbox eats is taken from that sandbox alone, and all of it comes back.

use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde_json::{Value, json};

use super::{not_testable_here, output};
use crate::support::{TestApp, backend, wait_for};

/// Runs hostile code, and meanwhile a neighbour's cells, each of which must be answered soon.
async fn with_a_neighbour(app: &TestApp, code: &str, timeout_seconds: u64) -> Value {
    app.run("neighbour", "n = 0").await;
    let body = json!({"timeout_seconds": timeout_seconds});
    let hostile = app.run_with("hostile", code, body);
    tokio::pin!(hostile);
    let mut cells = 0;
    loop {
        let began = Instant::now();
        tokio::select! {
            answer = &mut hostile => {
                assert!(cells > 0, "the neighbour was never asked");
                return answer;
            }
            next = app.run("neighbour", "n += 1; n") => {
                cells += 1;
                assert_eq!(next["output"], format!("{cells}\n"), "{next}");
                assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
            }
        }
    }
}

async fn assert_recovered(app: &TestApp) {
    let body = json!({"timeout_seconds": 30});
    let next = app.run_with("hostile", "print(6 * 7)", body).await;
    assert_eq!(next["output"], "42\n", "{next}");
}

#[tokio::test]
async fn case_38_a_fork_bomb_stays_inside() {
    let app = TestApp::start_with(&[("SANDBOX_PIDS", "64")]).await;
    for bomb in [
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "import subprocess; subprocess.run(['bash', '-c', 'f() { f | f & }; f; while :; do :; done'], stderr=subprocess.DEVNULL)",
        "import threading\nwhile True:\n    try: threading.Thread(target=lambda: threading.Event().wait(), daemon=True).start()\n    except RuntimeError: pass",
        "import os, signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True:\n    try:\n        if os.fork() == 0: os.setsid()\n    except OSError: pass",
    ] {
        let answer = with_a_neighbour(&app, bomb, 1).await;
        assert_eq!(answer["status"], "timeout", "{bomb}: {answer}");
        assert_recovered(&app).await;
        app.session("sandbox/reset", "hostile").await;
        let left = "import os; print(len([p for p in os.listdir('/proc') if p.isdigit()]))";
        assert_eq!(output(&app, "hostile", left).await, "2\n", "after {bomb}");
    }
}

#[tokio::test]
async fn case_39_memory_and_scratch_that_outgrow_the_limit_are_reported_as_oom() {
    let app = TestApp::start_with(&[("SANDBOX_MEMORY_MB", "128")]).await;
    for code in [
        "print('before', flush=True); b = bytearray(1 << 30)",
        "print('before', flush=True)\nhoard = []\nwhile True: hoard.append(' ' * 1000000)",
        "import os\nprint('before', flush=True)\nfor folder in ('/tmp', '/dev/shm'):\n    try:\n        with open(folder + '/fill', 'wb') as f:\n            while True: f.write(b'x' * (1 << 20))\n    except OSError: pass\nb = bytearray(80 << 20)",
    ] {
        let answer = with_a_neighbour(&app, code, 20).await;
        assert_eq!(
            [&answer["status"], &answer["state"], &answer["reason"]],
            ["died", "lost", "oom"],
            "{code}: {answer}"
        );
        assert!(
            answer["output"].as_str().unwrap().starts_with("before\n"),
            "{answer}"
        );
        assert_recovered(&app).await;
        app.run("hostile", "import os\nfor f in ('/tmp/fill', '/dev/shm/fill'):\n    if os.path.exists(f): os.remove(f)").await;
    }
    if !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        not_testable_here(
            39,
            "this host has cgroup v1; limits under cgroup v2 are not seen at work",
        );
    }
}

#[tokio::test]
async fn case_40_a_flood_of_output_is_cut_and_costs_the_service_no_memory() {
    let app = TestApp::start().await;
    app.run("hostile", "print('x' * 1000000)").await;
    let before_kb = app.service_memory_kb();
    for flood in [
        "while True: print('x' * 1000)",
        "import os\nwhile True: os.write(1, b'x' * 60000)",
        "import subprocess; subprocess.run('yes', shell=True)",
        "while True: display('x' * 10000)",
        "import sys\nwhile True: sys.stderr.write('x\\n')",
        "raise ValueError('x' * 50_000_000)",
        "'x' * 50_000_000",
    ] {
        let answer = with_a_neighbour(&app, flood, 2).await;
        let is_endless = flood.contains("while") || flood.contains("yes");
        assert!(!is_endless || answer["truncated"] == true, "{flood}");
        let length = answer["output"].as_str().unwrap().len();
        assert!(length < 300_000, "{flood}: {length} bytes");
        // A child that was left behind goes on printing into the next cell; a reset ends it.
        app.session("sandbox/reset", "hostile").await;
        assert_recovered(&app).await;
    }
    let grown_kb = app.service_memory_kb().saturating_sub(before_kb);
    assert!(grown_kb < 64 << 10, "the service grew by {grown_kb} KiB");
}

#[tokio::test]
async fn case_41_filling_the_workspace_ends_at_its_limit_and_hurts_nobody() {
    let app =
        TestApp::start_with(&[("MAX_WORKSPACE_SIZE_MB", "16"), ("MAX_TOTAL_FILES", "500")]).await;
    for fill in [
        "i = 0\nwhile True:\n    i += 1; open(f'f{i}', 'wb').write(b'x' * (1 << 20))",
        "f = open('one', 'wb')\nwhile True: f.write(b'x' * (1 << 20)); f.flush()",
        "import os\ni = 0\nwhile True:\n    i += 1; os.makedirs(f'd/{i}/e')",
        "i = 0\nwhile True:\n    i += 1; open(f'e{i}', 'w').close()",
    ] {
        let answer = with_a_neighbour(&app, fill, 20).await;
        // Refused to the program itself (ENOSPC, EFBIG), or stopped by the host: either way by a limit of its own.
        let error = answer["error"]["name"].as_str().unwrap_or_default();
        assert!(
            ["OSError", "WorkspaceQuotaExceeded"].contains(&error),
            "{fill}: {answer}"
        );
        assert_recovered(&app).await;
        app.session("sandbox/stop", "hostile").await;
    }
    assert_eq!(app.upload("neighbour", "f", b"x", None).await.0, 200);
}

#[tokio::test]
async fn case_42_five_hundred_first_calls_at_once_make_one_container() {
    let app = TestApp::start_with(&[("SANDBOX_QUEUE_MAX", "500")]).await;
    let calls = (0..500).map(|_| app.run("s", "globals().setdefault('seen', []).append(1)"));
    let answers = futures_util::future::join_all(calls).await;
    assert!(answers.iter().all(|answer| answer["state"] == "kept"));
    assert_eq!(app.run("s", "len(seen)").await["output"], "500\n");
    assert_eq!(app.containers().len(), 1);
    assert_eq!(
        app.log().matches("sandbox started").count(),
        1,
        "none was made and thrown away"
    );
}

/// What a service holds of the host, and what its sandboxes do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Holdings {
    descriptors: usize,
    threads: usize,
    mounts: usize,
    cgroups: usize,
    processes: usize,
    folders: usize,
}

impl Holdings {
    fn of(app: &TestApp) -> Self {
        let service = format!("/proc/{}", app.service_pid());
        let root = app.work_root().to_str().unwrap().to_owned();
        let deployment = std::fs::read_to_string(app.work_root().join("deployment")).unwrap();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let entries = |folder: &str| std::fs::read_dir(folder).map_or(0, Iterator::count);
        let own = ["sessions", "containers", "trash", "pool"];
        Self {
            descriptors: entries(&format!("{service}/fd")),
            threads: entries(&format!("{service}/task")),
            mounts: mounts.lines().filter(|line| line.contains(&root)).count(),
            cgroups: cgroups_of(Path::new("/sys/fs/cgroup"), &deployment, app),
            processes: processes_of(&root),
            folders: own
                .iter()
                .map(|name| entries(&format!("{root}/{name}")))
                .sum(),
        }
    }
}

/// Cgroups whose name holds the deployment's id (embedded), or containers that the engine still knows (docker).
fn cgroups_of(folder: &Path, deployment: &str, app: &TestApp) -> usize {
    if backend() == "docker" {
        return app.containers().len();
    }
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    let folders = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders
        .map(|entry| {
            let is_ours = entry.file_name().to_string_lossy().contains(deployment);
            usize::from(is_ours) + cgroups_of(&entry.path(), deployment, app)
        })
        .sum()
}

/// Processes that have something of the work root mounted and are not the service itself: those in sandboxes.
fn processes_of(root: &str) -> usize {
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    pids.filter(|entry| {
        entry
            .file_name()
            .to_string_lossy()
            .bytes()
            .all(|b| b.is_ascii_digit())
    })
    .filter(|entry| {
        let mounts = std::fs::read_to_string(entry.path().join("mountinfo")).unwrap_or_default();
        mounts.lines().any(|line| line.contains(root))
    })
    .count()
}

const ROUNDS: usize = 500;
const WARM_UP_ROUNDS: usize = 100;
const AT_ONCE: usize = 4;

async fn rounds(app: &TestApp, numbers: std::ops::Range<usize>) {
    let calls = numbers.map(|number| async move {
        let session = format!("s{number}");
        let answer = app.run(&session, "open('f', 'w').write('x'); 6 * 7").await;
        assert_eq!(answer["output"], "42\n", "{answer}");
        let stopped = app.session("sandbox/stop", &session).await;
        assert_eq!(
            stopped["deleted"],
            json!({"container": true, "workspace": true, "objects": 1}),
            "{number}"
        );
    });
    futures_util::stream::iter(calls)
        .buffer_unordered(AT_ONCE)
        .collect::<Vec<()>>()
        .await;
}

/// Waits until nothing of any session is left and the service's idle threads have gone home.
async fn settled(app: &TestApp, threads_at_most: usize) -> Holdings {
    wait_for("the service to settle", || {
        let now = Holdings::of(app);
        let empty = (now.mounts, now.cgroups, now.processes, now.folders) == (0, 0, 0, 0);
        (empty && now.threads <= threads_at_most).then_some(now)
    })
    .await
}

#[tokio::test]
async fn case_43_five_hundred_sessions_made_used_and_deleted_leave_nothing_behind() {
    let app = TestApp::start().await;
    rounds(&app, 0..WARM_UP_ROUNDS).await;
    let warm = settled(&app, usize::MAX).await;
    let warm_kb = app.service_memory_kb();
    rounds(&app, WARM_UP_ROUNDS..ROUNDS).await;
    // Connections that this client keeps open, and threads that wait for work, come and go.
    let after = settled(&app, warm.threads + 4).await;
    let after_kb = app.service_memory_kb();
    assert!(
        after.descriptors <= warm.descriptors + 8,
        "{warm:?} then {after:?}"
    );
    let grown_kb = after_kb.saturating_sub(warm_kb);
    assert!(grown_kb < 24 << 10, "from {warm_kb} to {after_kb} KiB");
    let shown = format!(
        "case 43 {}: {warm:?} {warm_kb} KiB after {WARM_UP_ROUNDS} rounds, {after:?} {after_kb} KiB after {ROUNDS}\n",
        backend()
    );
    std::io::Write::write_all(&mut std::io::stderr(), shown.as_bytes()).unwrap();
}
