//! Group C: hostile code against the kernel it shares an interpreter with, and against the link to the host.
//! Invariant: whatever it does, the answer is typed and in time, the service goes on, and so does the next cell.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::output;
use crate::support::{TestApp, wait_for};

/// For a busy machine, on top of what the service promises.
const SLACK: Duration = Duration::from_secs(2);

async fn assert_works(app: &TestApp, session: &str, after: &str) {
    let body = json!({"timeout_seconds": 20});
    let next = app.run_with(session, "print(6 * 7)", body).await;
    assert_eq!(next["status"], "ok", "after {after}: {next}");
    let text = next["output"].as_str().unwrap();
    assert!(text.ends_with("42\n"), "after {after}: {next}");
}

#[tokio::test]
async fn case_20_the_control_socket_cannot_be_replaced() {
    let app = TestApp::start().await;
    let code = "
import json, os, socket
path, folder = '/run/cellblock/kernel.sock', '/run/cellblock'
def bind(at): socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).bind(at)
done = []
for name, attempt in {
    'unlink': lambda: os.unlink(path), 'rename': lambda: os.rename(path, '/workspace/kernel.sock'), 'over': lambda: os.rename('/workspace/mine', path),
    'bind': lambda: bind(path), 'beside': lambda: bind(folder + '/other.sock'), 'symlink': lambda: os.symlink('/tmp', folder + '/link'),
    'link': lambda: os.link(path, '/workspace/hard'), 'chmod': lambda: os.chmod(path, 0), 'folder': lambda: os.rename(folder, '/run/gone'),
    'rmdir': lambda: os.rmdir(folder), 'truncate': lambda: os.truncate(path, 0), 'open': lambda: os.open(path, os.O_RDWR), 'xattr': lambda: os.setxattr(path, 'user.x', b'1')}.items():
    if name == 'over': open('/workspace/mine', 'w').close()
    try: attempt(); done.append(name)
    except OSError: pass
print(json.dumps(done))";
    assert_eq!(output(&app, "s", code).await, "[]\n");
    assert_works(&app, "s", "all attempts").await;
}

#[tokio::test]
async fn case_20_dialling_it_from_a_cell_gains_nothing_and_is_logged_once() {
    let app = TestApp::start().await;
    let code = "
import socket, time
def dial():
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.settimeout(0.2)
    try: s.connect('/run/cellblock/kernel.sock'); s.send(b'\\0{\"op\":\"hello\",\"role\":\"control\",\"protocol\":1}'); return s.recv(10)
    except OSError: return b''
until = time.monotonic() + 1
while time.monotonic() < until: assert dial() == b''";
    assert_eq!(output(&app, "s", code).await, "");
    assert_eq!(app.log().matches("dialled its kernel socket").count(), 1);
    assert_works(&app, "s", "dialling").await;
}

/// Sends packets on every socket that the worker holds: its link to the host is among them.
fn sending(packets: &str) -> String {
    format!(
        "
import os, socket
for fd in range(3, 1024):
    try: s = socket.socket(fileno=os.dup(fd))
    except OSError: continue
    # The host reads all of it, if it is given the time; nobody may read on the other end of another socket.
    s.settimeout(0.5)
    for packet in {packets}:
        try: s.send(packet)
        except OSError: break
print('sent')"
    )
}

#[tokio::test]
async fn case_21_a_broken_frame_ends_that_sandbox_and_not_the_service() {
    let app = TestApp::start().await;
    app.run("neighbour", "kept = 1").await;
    for (what, packets) in [
        ("an unknown kind", r"[b'\x09junk']"),
        ("no JSON", r"[b'\x00not json']"),
        ("not an object", r"[b'\x00[1]']"),
        ("deep JSON", r"[b'\x00' + b'[' * 60000]"),
        (
            "deep JSON in an object",
            r#"[b'\x00{"op":"stream","x":' + b'{"x":' * 8000]"#,
        ),
        ("a wrong type", r#"[b'\x00{"op":"done","id":"x"}']"#),
        ("an end without a beginning", r"[b'\x02end']"),
        ("a giant packet", r"[b'\x00' * 61443]"),
        ("a giant frame", r"[b'\x01' + b'x' * 61000] * 20"),
        ("an empty packet", "[b'']"),
    ] {
        let began = Instant::now();
        let body = json!({"timeout_seconds": 10});
        let answer = app.run_with("s", &sending(packets), body).await;
        assert_eq!(answer["state"], "lost", "{what}: {answer}");
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "{what}: {:?}",
            began.elapsed()
        );
        assert_works(&app, "s", what).await;
    }
    assert_eq!(app.run("neighbour", "kept").await["output"], "1\n");
}

#[tokio::test]
async fn case_21_slow_truncated_and_forged_frames_hold_nothing_up() {
    let app = TestApp::start().await;
    let forged = r#"
import json, os, socket, sys
frame = sys._getframe()
while 'execution' not in frame.f_locals: frame = frame.f_back
done = json.dumps({'op': 'done', 'id': frame.f_locals['execution'], 'status': 'ok', 'execution_count': 2 ** 63, 'result': {'text/plain': 'forged'}})
for fd in range(3, 1024):
    try: socket.socket(fileno=os.dup(fd)).send(b'\0' + done.encode(), socket.MSG_DONTWAIT)
    except OSError: pass
while True: pass"#;
    let slow = "
import os, socket, threading, time
def trickle():
    while True:
        for fd in range(3, 1024):
            try: socket.socket(fileno=os.dup(fd)).send(b'\\x01x', socket.MSG_DONTWAIT)
            except OSError: pass
        time.sleep(0.01)
threading.Thread(target=trickle, daemon=True).start()";
    for (what, code) in [
        ("truncated", sending(r#"[b'\x01{"op":"str']"#)),
        ("slow", slow.to_owned()),
        ("forged", forged.to_owned()),
        (
            "another's id",
            sending(r#"[b'\x00{"op":"stream","id":1,"stream":"stdout","text":"x"}'] * 500"#),
        ),
    ] {
        let began = Instant::now();
        let answer = app
            .run_with(what, &code, json!({"timeout_seconds": 2}))
            .await;
        assert!(
            began.elapsed() < Duration::from_secs(5) + SLACK,
            "{what}: {answer}"
        );
        assert!(
            !answer["output"].as_str().unwrap().contains("xx"),
            "{what}: {answer}"
        );
        // A cell that said it was done and runs on takes the next one's time; that one ends it.
        let next = app
            .run_with(what, "print(6 * 7)", json!({"timeout_seconds": 2}))
            .await;
        let status = next["status"].as_str().unwrap();
        assert!(
            ["ok", "timeout", "died"].contains(&status),
            "{what}: {next}"
        );
        assert_works(&app, what, what).await;
    }
    assert_works(&app, "another", "all of them").await;
}

#[tokio::test]
async fn case_22_whatever_ends_the_kernel_is_told_in_three_seconds_and_the_next_cell_works() {
    let app = TestApp::start().await;
    for (code, reason) in [
        ("import os; print('before'); os._exit(7)", "exit"),
        (
            "import ctypes; print('before', flush=True); ctypes.string_at(0)",
            "signal",
        ),
        (
            "import os, signal; print('before', flush=True); os.kill(os.getpid(), signal.SIGSEGV)",
            "signal",
        ),
        (
            "import os; print('before', flush=True); os.abort()",
            "signal",
        ),
        (
            "import subprocess; print('before', flush=True); subprocess.run('kill -9 -1', shell=True)",
            "signal",
        ),
    ] {
        app.run("s", "x = 1; open('kept.txt', 'w').write('k')")
            .await;
        let began = Instant::now();
        let answer = app.run("s", code).await;
        assert!(
            began.elapsed() < Duration::from_secs(3),
            "{code}: {:?}",
            began.elapsed()
        );
        assert_eq!(
            [&answer["status"], &answer["state"], &answer["reason"]],
            ["died", "lost", reason],
            "{code}: {answer}"
        );
        let text = answer["output"].as_str().unwrap();
        assert!(text.starts_with("before\n"), "{code}: {answer}");
        let next = app
            .run("s", "import os; print('x' in globals(), os.listdir())")
            .await;
        assert_eq!(next["output"], "False ['kept.txt']\n", "after {code}");
        assert_eq!(next["state"], "kept", "the loss was said already");
    }
}

#[tokio::test]
async fn case_23_patched_builtins_and_json_stay_in_their_session() {
    let app = TestApp::start_with(&[("SANDBOX_POOL_SIZE", "1")]).await;
    let code = "
import builtins, io, json, os, socket, sys, time, traceback
builtins.print = builtins.len = builtins.open = builtins.type = None
for name in ('dumps', 'loads', 'JSONEncoder'): setattr(json, name, None)
os.write = os.read = os.fork = os.kill = None
socket.socket = time.monotonic = traceback.format_exception = None
sys.excepthook = sys.displayhook = lambda *a: 1 / 0
sys.modules['json'] = sys.modules['_json'] = None
'done'";
    let answer = app.run("s", code).await;
    assert_eq!(answer["status"], "ok", "{answer}");
    // The loop goes on in the patched session too.
    assert_eq!(app.run("s", "6 * 7").await["output"], "42\n");
    let clean = "import builtins, json, os; print(json.dumps([len('x'), callable(os.write), callable(builtins.open)]))";
    for session in ["t", "u", "v"] {
        assert_eq!(output(&app, session, clean).await, "[1, true, true]\n");
    }
    app.session("sandbox/reset", "s").await;
    assert_eq!(output(&app, "s", clean).await, "[1, true, true]\n");
}

#[tokio::test]
async fn case_24_closed_exhausted_and_forbidden_descriptors_can_be_recovered_from() {
    let app = TestApp::start().await;
    for code in [
        "import os\nos.closerange(0, 4096)",
        "import os\nfor fd in (0, 1, 2): os.close(fd)",
        "import os\nfor fd in range(1024):\n    try: os.dup2(0, fd)\n    except OSError: pass",
        "files = []\ntry:\n    while True: files.append(open('/dev/null'))\nexcept OSError: pass",
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))",
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))",
        "import resource; resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))\nimport os; os._exit(1)",
        "import resource; resource.prlimit(1, resource.RLIMIT_AS, (1, 1))\nimport os; os._exit(1)",
        "import resource; resource.prlimit(1, resource.RLIMIT_NPROC, (0, 0))\nimport os; os._exit(1)",
        "import sys\nsys.stdout = sys.stderr = sys.__stdout__ = None",
        "import os\nif os.fork() == 0: print('child')",
    ] {
        let body = json!({"timeout_seconds": 10});
        let answer = app.run_with("s", code, body).await;
        let status = answer["status"].as_str().unwrap();
        assert!(
            ["ok", "error", "died"].contains(&status),
            "{code}: {answer}"
        );
        assert_works(&app, "s", code).await;
        app.session("sandbox/reset", "s").await;
    }
}

#[tokio::test]
async fn case_25_code_that_ignores_the_interrupt_ends_three_seconds_after_its_deadline() {
    let app = TestApp::start().await;
    app.run("s", "1").await;
    for code in [
        "import itertools; sum(itertools.repeat(1))",
        "import re; re.match(r'(a+)+$', 'a' * 60 + 'b')",
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))\nwhile True: pass",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    ] {
        let began = Instant::now();
        let answer = app.run_with("s", code, json!({"timeout_seconds": 1})).await;
        assert_eq!(answer["status"], "timeout", "{code}: {answer}");
        let limit = Duration::from_secs(1 + 3) + SLACK;
        assert!(began.elapsed() < limit, "{code}: {:?}", began.elapsed());
        assert_works(&app, "s", code).await;
    }
}

#[tokio::test]
async fn case_26_what_prints_later_never_shows_in_another_session_and_is_gone_after_a_reset() {
    let app = TestApp::start().await;
    let code = "
import os, subprocess, sys, threading, time
def nag():
    while True: print('LATE'); os.write(1, b'LATE\\n'); time.sleep(0.005)
threading.Thread(target=nag, daemon=True).start()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        # No mark, no name, no parent: as far from its session as it gets.
        os.execve('/bin/sh', ['sh', '-c', 'while :; do echo LATE; echo LATE >&2; done'], {})
    os._exit(0)
print('begun')";
    let answer = app.run("noisy", code).await;
    assert!(
        answer["output"].as_str().unwrap().contains("begun"),
        "{answer}"
    );
    for round in 0..20 {
        let quiet = format!("quiet{}", round % 2);
        assert_eq!(output(&app, &quiet, "print(1)").await, "1\n");
    }
    app.session("sandbox/reset", "noisy").await;
    let count = "import os; print(len([p for p in os.listdir('/proc') if p.isdigit()]))";
    for _ in 0..10 {
        assert_eq!(
            output(&app, "noisy", count).await,
            "2\n",
            "supervisor and worker only"
        );
    }
}

/// Between two cells, with the worker stopped: asks the supervisor for a fresh cell link and says on it that it is the
/// control link, with words that would fill a log; then answers whatever the host asks.
const FORGED_CONTROL: &str = r#"
import json, os, socket, time
handoff = None
for fd in range(3, 1024):
    try: s = socket.socket(fileno=os.dup(fd))
    except OSError: continue
    if not s.getpeername(): handoff = s
worker = os.getpid()
if os.fork() == 0:
    os.setsid()
    # The supervisor hands out no two links within half a second, and the cell must be over.
    time.sleep(0.7)
    while open(f'/proc/{worker}/stat').read().rpartition(')')[2].split()[0] != 'S': time.sleep(0.05)
    os.kill(worker, 19)
    handoff.send(b'L')
    _, fds, _, _ = socket.recv_fds(handoff, 16, 1)
    link = socket.socket(fileno=fds[0])
    hello = {'op': 'hello', 'role': 'control', 'protocol': 1, 'python': 'FORGED' * 1000, 'preload_failed': ['FORGED' * 500] * 16}
    link.send(b'\0' + json.dumps(hello).encode())
    open('/workspace/forged', 'w').close()
    while True:
        packet = link.recv(70000)
        if not packet: break
        request = json.loads(packet[1:])
        link.send(b'\0' + json.dumps({'op': 'ok', 'id': request['id'], 'running': True, 'generation': 99}).encode())
    os._exit(0)
print('begun')"#;

#[tokio::test]
async fn case_26_a_forged_control_link_is_refused_and_a_reset_still_resets() {
    let app = TestApp::start().await;
    assert_eq!(output(&app, "s", FORGED_CONTROL).await, "begun\n");
    wait_for("the forgery", || {
        app.only_workspace().join("forged").exists().then_some(())
    })
    .await;
    app.session("sandbox/reset", "s").await;
    let count = "import os; print(len([p for p in os.listdir('/proc') if p.isdigit()]), 'worker' in globals())";
    assert_eq!(output(&app, "s", count).await, "2 False\n");
    assert!(
        !app.log().contains("FORGED"),
        "the sandbox wrote into the log"
    );
}

#[tokio::test]
async fn case_26_a_forged_mark_does_not_save_a_process_from_a_reset() {
    let app = TestApp::start().await;
    let code = "import resource, subprocess; mark = lambda: resource.setrlimit(resource.RLIMIT_MSGQUEUE, (1, 1)); subprocess.Popen(['sleep', '100'], preexec_fn=mark, start_new_session=True); print('begun')";
    assert_eq!(output(&app, "s", code).await, "begun\n");
    app.session("sandbox/reset", "s").await;
    let count = "import os; print(len([p for p in os.listdir('/proc') if p.isdigit()]))";
    assert_eq!(output(&app, "s", count).await, "2\n");
    let shown: Value = app.status("s").await.1;
    assert_eq!(shown["kernel_answers"], true, "{shown}");
}
