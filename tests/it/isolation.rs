//! What code in a sandbox can see and do: asked from inside a real container.

use serde_json::json;

use crate::support::TestApp;

async fn output(app: &TestApp, code: &str) -> String {
    let answer = app
        .run_with("s", code, json!({"timeout_seconds": 50}))
        .await;
    assert_eq!(answer["status"], "ok", "{answer}");
    answer["output"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_process_has_no_privileges_and_a_filter() {
    let app = TestApp::start().await;
    let code = "import os\nstatus = {k: v.strip() for k, _, v in (line.partition(':') for line in open('/proc/self/status'))}\nprint({k: int(status[k], 16) for k in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb')}, status['NoNewPrivs'], status['Seccomp'], os.getuid(), os.getgid(), os.getgroups())";
    let expected =
        "{'CapInh': 0, 'CapPrm': 0, 'CapEff': 0, 'CapBnd': 0, 'CapAmb': 0} 1 2 65532 65532 []\n";
    assert_eq!(output(&app, code).await, expected);
}

#[tokio::test]
async fn only_the_workspace_and_tmp_can_be_written() {
    let app = TestApp::start().await;
    let code = "
import os
def writable(folder):
    try:
        open(folder + '/probe', 'w').close(); os.remove(folder + '/probe'); return True
    except OSError: return False
folders = ['/', '/usr', '/usr/bin', '/etc', '/opt/cellblock/kernel', '/run/cellblock', '/proc/sys/kernel', '/workspace', '/tmp', os.path.dirname(os.__file__)]
print([folder for folder in folders if writable(folder)])
try: os.unlink('/run/cellblock/kernel.sock')
except OSError as error: print(error.strerror)
try: open('/proc/sys/kernel/core_pattern', 'w')
except OSError: print('no core pattern')";
    assert_eq!(
        output(&app, code).await,
        "['/workspace', '/tmp']\nRead-only file system\nno core pattern\n"
    );
}

#[tokio::test]
async fn there_is_no_network_but_a_server_of_ones_own_works() {
    let app = TestApp::start().await;
    let code = "
import socket, threading, urllib.request, http.server
print(sorted(line.split(':')[0].strip() for line in open('/proc/net/dev').readlines()[2:]))
for target in (('169.254.169.254', 80), ('10.0.0.1', 80), ('1.1.1.1', 53)):
    try: socket.create_connection(target, timeout=2); print('reached', target)
    except OSError as error: pass
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.end_headers(); self.wfile.write(b'hello')
    def log_message(self, *a): pass
server = http.server.HTTPServer(('127.0.0.1', 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen(f'http://127.0.0.1:{server.server_port}/').read())";
    assert_eq!(output(&app, code).await, "['lo']\nb'hello'\n");
}

#[tokio::test]
async fn only_plain_socket_families_and_no_dangerous_call_are_allowed() {
    let app = TestApp::start().await;
    let code = "
import socket, ctypes, errno
allowed = []
for family in range(46):
    try: socket.socket(family, socket.SOCK_STREAM).close(); allowed.append(family)
    except OSError: pass
print(allowed)
libc = ctypes.CDLL(None, use_errno=True)
calls = {'ptrace': 101, 'unshare': 272, 'setns': 308, 'mount': 165, 'bpf': 321, 'perf_event_open': 298, 'userfaultfd': 323, 'io_uring_setup': 425, 'keyctl': 250, 'add_key': 248, 'pidfd_getfd': 438, 'process_vm_readv': 310, 'open_by_handle_at': 304, 'memfd_secret': 447, 'msgget': 68, 'shmget': 29, 'mq_open': 240, 'vmsplice': 278, 'init_module': 175, 'kexec_load': 246, 'clone3': 435}
import platform
if platform.machine() == 'x86_64':
    for name, number in calls.items():
        ctypes.set_errno(0)
        result = libc.syscall(number, 0, 0, 0, 0, 0)
        if result != -1 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS): print(name, result, ctypes.get_errno())";
    assert_eq!(output(&app, code).await, "[1, 2, 10]\n");
}

#[tokio::test]
async fn nothing_of_the_host_shows() {
    let app = TestApp::start_with(&[("SANDBOX_API_KEY", "")]).await;
    let code = "
import os
print(sorted(k for k in os.environ if k not in ('PATH', 'HOME', 'LANG', 'TMPDIR', 'PYTHONPATH', 'PWD') and not k.startswith(('XDG_', 'MPL', 'PYTHON')) and not k.endswith('_NUM_THREADS')))
print(os.path.exists('/var/run/docker.sock'), os.path.exists('/run/docker.sock'), os.path.exists('/sys/fs/cgroup'), os.path.exists('/root/.bashrc'), os.path.exists('/home'))
pids = [p for p in os.listdir('/proc') if p.isdigit()]
print(len(pids), os.uname().nodename)";
    let text = output(&app, code).await;
    assert_eq!(text, "[]\nFalse False False False False\n2 sandbox\n");
}

#[tokio::test]
async fn programs_in_tmp_do_not_run_and_tmp_is_small() {
    let app = TestApp::start().await;
    let code = "
import os, subprocess
open('/tmp/x', 'w').write('#!/bin/sh\\necho ran'); os.chmod('/tmp/x', 0o755)
try: subprocess.run(['/tmp/x'])
except PermissionError: print('not from tmp')
try: open('/tmp/big', 'wb').write(b'x' * (80 << 20))
except OSError as error: print(error.strerror)
os.remove('/tmp/big')";
    assert_eq!(
        output(&app, code).await,
        "not from tmp\nNo space left on device\n"
    );
}

#[tokio::test]
async fn the_tools_of_the_host_work_inside() {
    let app = TestApp::start().await;
    for tool in [
        "bash --version",
        "jq --version",
        "node -e 1",
        "awk 1 /dev/null",
        "git --version",
    ] {
        let name = tool.split(' ').next().unwrap();
        if std::process::Command::new(name)
            .arg("--version")
            .output()
            .is_err()
        {
            continue;
        }
        let code = format!(
            "import subprocess; subprocess.run({tool:?}, shell=True, capture_output=True).returncode"
        );
        assert_eq!(output(&app, &code).await, "0\n", "{tool}");
    }
}

#[tokio::test]
async fn a_fork_bomb_stays_inside_and_the_next_cell_works() {
    let app = TestApp::start_with(&[("SANDBOX_PIDS", "64")]).await;
    let bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass";
    let answer = app
        .run_with("bomb", bomb, json!({"timeout_seconds": 1}))
        .await;
    assert_eq!(answer["status"], "timeout", "{answer}");
    assert_eq!(app.run("neighbour", "1 + 1").await["output"], "2\n");
    let next = app
        .run_with("bomb", "2 + 2", json!({"timeout_seconds": 30}))
        .await;
    assert_eq!(next["output"], "4\n", "{next}");
}

#[tokio::test]
async fn five_hundred_kilobytes_of_hostile_frames_end_that_sandbox_and_not_the_service() {
    let app = TestApp::start().await;
    // Every socket the worker holds gets rubbish: wrong kinds, endless parts, no JSON, deep JSON, forged ends.
    let code = "
import os, socket
for fd in range(3, 1024):
    try: s = socket.socket(fileno=os.dup(fd))
    except OSError: continue
    s.setblocking(False)
    for packet in (b'\\x09junk', b'\\x00not json', b'\\x00' + b'[' * 60000, b'\\x00{\"op\":\"done\",\"id\":\"x\"}', b'\\x02end', b'\\x00' * 61442) + (b'\\x01' + b'x' * 61000,) * 20:
        try: s.send(packet)
        except OSError: pass
print('sent')";
    let answer = app
        .run_with("s", code, json!({"timeout_seconds": 10}))
        .await;
    assert_eq!(answer["state"], "lost", "{answer}");
    assert_eq!(app.run("other", "1 + 1").await["output"], "2\n");
    assert_eq!(app.run("s", "2 + 2").await["output"], "4\n");
}

#[tokio::test]
async fn dialling_the_kernel_socket_from_a_cell_gains_nothing_and_is_logged_once() {
    let app = TestApp::start().await;
    let code = "
import socket, time
def dial():
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.settimeout(0.2)
    try: s.connect('/run/cellblock/kernel.sock'); return s.recv(10)
    except OSError: return b''
until = time.monotonic() + 1
while time.monotonic() < until: assert dial() == b''";
    assert_eq!(output(&app, code).await, "");
    assert_eq!(app.log().matches("dialled its kernel socket").count(), 1);
    assert_eq!(app.run("s", "1 + 1").await["output"], "2\n");
}
