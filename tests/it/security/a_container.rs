//! Group A: what code in a sandbox can see and do, asked from inside a real container.
//! Never asks the backend about itself. Invariant: every probe is made by hostile code, not by the host.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use serde_json::{Value, json};

use super::{not_testable_here, output, printed_json};
use crate::support::{TestApp, answer, backend};

/// Where a sandbox of this backend may have a mount: a pattern that ends in `*` stands for everything below.
fn declared_mounts() -> Vec<&'static str> {
    let mut declared = vec![
        "/",
        "/proc",
        "/proc/*",
        "/dev",
        "/dev/pts",
        "/dev/shm",
        "/dev/mqueue",
        "/tmp",
        "/workspace",
        "/run/cellblock",
        "/opt/cellblock/kernel",
        "/opt/cellblock/packages",
    ];
    if backend() == "docker" {
        declared.extend([
            "/sys",
            "/sys/*",
            "/etc/hosts",
            "/etc/hostname",
            "/etc/resolv.conf",
        ]);
    } else {
        declared.extend([
            "/usr",
            "/lib*",
            "/bin",
            "/sbin",
            "/etc/passwd",
            "/etc/group",
        ]);
    }
    declared
}

fn is_declared(mount: &str, interpreter: &str) -> bool {
    let matches = |pattern: &&str| match pattern.strip_suffix('*') {
        Some(start) => mount.starts_with(start),
        None => mount == *pattern,
    };
    // Where the host's Python lives outside /usr, its folder is mounted too.
    declared_mounts().iter().any(matches) || mount == interpreter
}

#[tokio::test]
async fn case_01_only_declared_mounts_are_there() {
    let app = TestApp::start().await;
    let code = "
import json, os, sys
mounts = []
for line in open('/proc/self/mountinfo'):
    fields = line.split()
    mounts.append([fields[4], fields[5].split(',')[0]])
print(json.dumps({'mounts': mounts, 'interpreter': sys.base_prefix, 'run': sorted(os.listdir('/run/cellblock'))}))";
    let seen = printed_json(&app, "s", code).await;
    let interpreter = seen["interpreter"].as_str().unwrap();
    let mounts = seen["mounts"].as_array().unwrap();
    let undeclared: Vec<&Value> = mounts
        .iter()
        .filter(|mount| !is_declared(mount[0].as_str().unwrap(), interpreter))
        .collect();
    assert!(undeclared.is_empty(), "{undeclared:?}");
    for (place, mode) in [
        ("/", "ro"),
        ("/run/cellblock", "ro"),
        ("/workspace", "rw"),
        ("/tmp", "rw"),
    ] {
        assert!(
            mounts.contains(&json!([place, mode])),
            "{place} {mode}: {mounts:?}"
        );
    }
    assert_eq!(seen["run"], json!(["kernel.sock"]));
}

#[tokio::test]
async fn case_01_no_descriptor_of_the_host_is_open() {
    let app = TestApp::start().await;
    let code = "
import json, os
seen, closed = set(), []
for pid in filter(str.isdigit, os.listdir('/proc')):
    try: numbers = os.listdir(f'/proc/{pid}/fd')
    except PermissionError: closed.append(int(pid)); continue
    for number in numbers:
        try: seen.add(os.readlink(f'/proc/{pid}/fd/{number}').split(':')[0])
        except FileNotFoundError: pass
print(json.dumps([sorted(seen - {f'/proc/{os.getpid()}/fd'}), closed]))";
    let seen = printed_json(&app, "s", code).await;
    assert_eq!(
        seen,
        json!([["/dev/null", "pipe", "socket"], [1]]),
        "the worker's pipes and sockets and nothing else; the init's are not to be seen"
    );
}

#[tokio::test]
async fn case_02_no_capability_no_new_privileges_a_filter_and_not_root() {
    let app = TestApp::start().await;
    let code = "
import json, os
def facts(pid):
    status = {k: v.strip() for k, _, v in (line.partition(':') for line in open(f'/proc/{pid}/status'))}
    caps = [int(status[k], 16) for k in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb')]
    return [caps, status['NoNewPrivs'], status['Seccomp'], 0 in map(int, status['Uid'].split() + status['Gid'].split())]
print(json.dumps([facts(1), facts('self'), os.getuid(), os.getgid(), [g for g in os.getgroups() if g != os.getgid()]]))";
    let bare = json!([[0, 0, 0, 0, 0], "1", "2", false]);
    assert_eq!(
        printed_json(&app, "s", code).await,
        json!([bare, bare, 65532, 65532, []])
    );
    if !std::path::Path::new("/sys/kernel/security/apparmor").exists() {
        not_testable_here(
            2,
            "this host has no AppArmor, so no profile is seen at work",
        );
    }
}

#[tokio::test]
async fn case_02_no_program_inside_gives_more_rights() {
    let app = TestApp::start().await;
    let code = "
import os, subprocess
found = subprocess.run(['find', '/', '-xdev', '-perm', '/6000', '-type', 'f'], capture_output=True, text=True).stdout.split()
# The host's own /usr may hold some in an embedded sandbox; no_new_privs makes them plain programs.
print([path for path in found if not path.startswith('/usr/')])
before = os.getuid()
for path in subprocess.run(['find', '/usr', '-perm', '-4000', '-name', 'su'], capture_output=True, text=True).stdout.split():
    shown = subprocess.run([path, '-c', 'id -u'], capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
    assert '0' not in shown.split(), shown
print(before == os.getuid() != 0)";
    assert_eq!(output(&app, "s", code).await, "[]\nTrue\n");
}

#[tokio::test]
async fn case_03_nothing_but_workspace_and_scratch_can_be_written() {
    let app = TestApp::start().await;
    let code = "
import json, os
def writable(folder):
    probe = os.path.join(folder, 'probe')
    try: os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY)); os.remove(probe); return True
    except OSError: return False
found = [folder for folder, folders, _ in os.walk('/') if not folder.startswith(('/proc', '/sys')) and writable(folder)]
named = ['/', '/usr', '/usr/bin', '/etc', '/opt/cellblock/kernel', '/opt/cellblock/kernel/cellblock_kernel', '/run/cellblock', '/proc/sys/kernel', os.path.dirname(os.__file__)]
changed = []
for path in ('/opt/cellblock/kernel/main.py', '/opt/cellblock/kernel/cellblock_kernel/supervisor.py', '/etc/passwd', os.__file__):
    for attempt in (lambda: open(path, 'a'), lambda: os.rename(path, path + '.old'), lambda: os.unlink(path), lambda: os.chmod(path, 0o777)):
        try: attempt(); changed.append(path)
        except OSError: pass
scratch = ('/workspace', '/tmp', '/dev/shm', '/dev/mqueue')
print(json.dumps([[f for f in found if not f.startswith(scratch)], [f for f in named if writable(f)], changed, writable('/workspace'), writable('/tmp')]))";
    assert_eq!(
        printed_json(&app, "s", code).await,
        json!([[], [], [], true, true])
    );
}

/// Names and numbers of all system calls on x86_64, and those that the filter lets through whatever their arguments.
fn denied_calls() -> Vec<(String, u32)> {
    let profile: Value =
        serde_json::from_str(include_str!("../../../src/sandbox/seccomp.json")).unwrap();
    let groups = profile["syscalls"].as_array().unwrap();
    let allowed: Vec<&str> = groups
        .iter()
        .filter(|group| group["action"] == "SCMP_ACT_ALLOW")
        .flat_map(|group| group["names"].as_array().unwrap())
        .map(|name| name.as_str().unwrap())
        .collect();
    include_str!("../../../src/sandbox/embedded/syscalls.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
        })
        .filter(|(name, _)| !allowed.contains(&name.as_str()))
        .collect()
}

/// What must be among the denied, whatever the profile says.
const NEVER_ALLOWED: [&str; 46] = [
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "pidfd_getfd",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "userfaultfd",
    "keyctl",
    "add_key",
    "request_key",
    "bpf",
    "perf_event_open",
    "memfd_secret",
    "name_to_handle_at",
    "open_by_handle_at",
    "shmget",
    "shmat",
    "shmctl",
    "semget",
    "semop",
    "semctl",
    "msgget",
    "msgsnd",
    "msgrcv",
    "msgctl",
    "mq_open",
    "mq_unlink",
    "mq_notify",
    "vmsplice",
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "open_tree",
    "move_mount",
    "fsopen",
    "fsmount",
    "mount_setattr",
    "unshare",
    "setns",
    "clone3",
    "init_module",
    "finit_module",
    "kexec_load",
    "reboot",
];

#[tokio::test]
async fn case_04_each_denied_system_call_gives_eperm_or_enosys() {
    if cfg!(not(target_arch = "x86_64")) {
        return not_testable_here(4, "the numbers of system calls are those of x86_64");
    }
    let denied = denied_calls();
    for name in NEVER_ALLOWED {
        assert!(denied.iter().any(|(denied, _)| denied == name), "{name}");
    }
    assert!(denied.len() > 80, "{}", denied.len());
    let app = TestApp::start().await;
    let code = format!(
        "
import ctypes, errno, json
libc = ctypes.CDLL(None, use_errno=True)
odd = []
for name, number in json.loads({:?}):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(0)] * 6)
    if result != -1 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS): odd.append([name, result, errno.errorcode.get(ctypes.get_errno())])
print(json.dumps(odd))",
        serde_json::to_string(&denied).unwrap()
    );
    assert_eq!(printed_json(&app, "s", &code).await, json!([]));
}

#[tokio::test]
async fn case_04_denied_arguments_and_other_call_tables_are_no_way_around() {
    if cfg!(not(target_arch = "x86_64")) {
        return not_testable_here(4, "the numbers of system calls are those of x86_64");
    }
    let app = TestApp::start().await;
    let code = r"
import ctypes, errno, json, mmap, os, signal
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) for a in arguments])
    return result, errno.errorcode.get(ctypes.get_errno())
odd = []
# clone with each namespace flag; a child that came to be would end at once
for name, flag in {'NEWTIME': 0x80, 'NEWNS': 0x20000, 'NEWCGROUP': 0x2000000, 'NEWUTS': 0x4000000, 'NEWIPC': 0x8000000, 'NEWUSER': 0x10000000, 'NEWPID': 0x20000000, 'NEWNET': 0x40000000}.items():
    if name == 'NEWTIME': continue  # shares its bit with the signal number of clone; only clone3 can ask for it
    result = call(56, flag | signal.SIGCHLD, 0, 0, 0, 0)
    if result[0] == 0: os._exit(0)
    if result != (-1, 'EPERM'): odd.append(['clone', name, result])
path = ctypes.create_string_buffer(b'/workspace/device')
for kind in (0o020000, 0o060000):
    result = call(133, ctypes.addressof(path), kind | 0o666, os.makedev(1, 3))
    if result != (-1, 'EPERM'): odd.append(['mknod', kind, result])
if call(16, 0, 0x5412, ctypes.addressof(path)) != (-1, 'EPERM'): odd.append('ioctl TIOCSTI')
if call(135, 0x0040000) != (-1, 'EPERM'): odd.append('personality ADDR_NO_RANDOMIZE')
def in_child(function):
    child = os.fork()
    if child == 0:
        result = function()
        os._exit(0 if result >= 0 else -result)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status): return 'signal'
    return errno.errorcode.get(os.WEXITSTATUS(status), 'allowed')
# the x32 table: getpid, ptrace, unshare, bpf
def x32(number):
    call(0x40000000 | number, 0, 0, 0, 0)
    return -ctypes.get_errno()
# the table of 32-bit programs, by int 0x80: getpid there is 20, ptrace 26
def legacy(number):
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b'\x53\xb8' + number.to_bytes(4, 'little') + b'\x31\xdb\x31\xc9\x31\xd2\x31\xf6\xcd\x80\x5b\xc3')
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
for table, numbers in ((x32, (39, 101, 272, 321)), (legacy, (20, 26))):
    for number in numbers:
        outcome = in_child(lambda: table(number))
        if outcome not in ('signal', 'EPERM', 'ENOSYS'): odd.append([table.__name__, number, outcome])
print(json.dumps(odd))";
    assert_eq!(printed_json(&app, "s", code).await, json!([]));
}

#[tokio::test]
async fn case_05_only_unix_and_inet_sockets_can_be_made() {
    let app = TestApp::start().await;
    let code = "
import errno, json, socket
made, odd = set(), []
for family in range(46):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        try: socket.socket(family, kind).close(); made.add(family)
        except OSError as error:
            if family not in (1, 2, 10) and error.errno != errno.EPERM: odd.append([family, kind, error.errno])
pairs = []
for family in range(46):
    try:
        for end in socket.socketpair(family, socket.SOCK_STREAM): end.close()
        pairs.append(family)
    except OSError: pass
protocols = []
for protocol in (132, 262, 33, 136):
    for family in (2, 10):
        try: socket.socket(family, socket.SOCK_STREAM, protocol).close(); protocols.append(protocol)
        except OSError: pass
print(json.dumps([sorted(made), odd, pairs, protocols]))";
    assert_eq!(
        printed_json(&app, "s", code).await,
        json!([[1, 2, 10], [], [1], []]),
        "families, other errors than EPERM, pairs, protocols beside TCP and UDP"
    );
}

#[tokio::test]
async fn case_05_a_server_of_ones_own_on_loopback_works() {
    let app = TestApp::start().await;
    let code = "
import http.server, threading, urllib.request
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.end_headers(); self.wfile.write(b'hello')
    def log_message(self, *a): pass
server = http.server.HTTPServer(('127.0.0.1', 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen(f'http://127.0.0.1:{server.server_port}/').read())";
    assert_eq!(output(&app, "s", code).await, "b'hello'\n");
}

#[tokio::test]
async fn case_06_there_is_no_interface_but_lo_and_no_way_out() {
    let app = TestApp::start().await;
    let on_host = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = on_host.local_addr().unwrap().port();
    let name = format!("cellblock-battery-{}", std::process::id());
    let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
    let _on_host_too = UnixListener::bind_addr(&abstract_name).unwrap();
    let service = app.base.trim_start_matches("http://127.0.0.1:").to_owned();
    let addresses = std::process::Command::new("hostname").arg("-I").output();
    let mut targets: Vec<String> = addresses
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default()
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    targets.extend(
        [
            "127.0.0.1",
            "::1",
            "0.0.0.0",
            "172.17.0.1",
            "169.254.169.254",
            "10.0.0.1",
            "1.1.1.1",
        ]
        .map(str::to_owned),
    );
    let code = format!(
        "
import json, socket
interfaces = sorted(line.split(':')[0].strip() for line in open('/proc/net/dev').readlines()[2:])
routes = [line.split()[0] for line in open('/proc/net/route').readlines()[1:]]
reached = []
for host in json.loads({targets:?}):
    for port in ({port}, {service}, 80, 53):
        try: socket.create_connection((host, port), timeout=2).close(); reached.append([host, port])
        except OSError: pass
    try:
        datagram = socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET, socket.SOCK_DGRAM)
        datagram.connect((host, 53))
        if datagram.getsockname()[0] not in ('127.0.0.1', '::1'): reached.append([host, 'udp'])
    except OSError: pass
try: socket.socket(socket.AF_UNIX).connect('\\0{name}'); reached.append('abstract')
except OSError: pass
try: reached.append(socket.getaddrinfo('example.com', 80))
except OSError: pass
print(json.dumps([interfaces, routes, reached]))",
        targets = serde_json::to_string(&targets).unwrap(),
    );
    assert_eq!(
        printed_json(&app, "s", &code).await,
        json!([["lo"], [], []])
    );
}

#[tokio::test]
async fn case_07_no_engine_socket_and_nothing_of_another_session() {
    let app = TestApp::start().await;
    let neighbour = "
import os, socket
for folder in ('/workspace', '/tmp', '/dev/shm'): open(folder + '/neighbours-secret', 'w').write('canary-of-the-neighbour')
path_socket = socket.socket(socket.AF_UNIX); path_socket.bind('/tmp/neighbours-socket'); path_socket.listen()
abstract = socket.socket(socket.AF_UNIX); abstract.bind('\\0neighbours-socket'); abstract.listen()
inet = socket.create_server(('127.0.0.1', 18765))
print('ready')";
    assert_eq!(output(&app, "neighbour", neighbour).await, "ready\n");
    let code = "
import json, os, socket
seen = [path for path in ('/var/run/docker.sock', '/run/docker.sock', '/run/containerd/containerd.sock', '/var/run/crio/crio.sock', '/run/podman/podman.sock') if os.path.exists(path)]
sockets = []
for folder, _, names in os.walk('/'):
    if folder.startswith(('/proc', '/sys')): continue
    for name in names:
        path = os.path.join(folder, name)
        if 'neighbours' in name: seen.append(path)
        try:
            if os.stat(path, follow_symlinks=False).st_mode & 0o170000 == 0o140000: sockets.append(path)
        except OSError: pass
for address in ('\\0neighbours-socket', '/tmp/neighbours-socket', ('127.0.0.1', 18765)):
    try: socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET).connect(address); seen.append(address)
    except OSError: pass
others = [pid for pid in os.listdir('/proc') if pid.isdigit() and int(pid) not in (1, os.getpid())]
print(json.dumps([seen, sockets, others, os.uname().nodename]))";
    assert_eq!(
        printed_json(&app, "s", code).await,
        json!([[], ["/run/cellblock/kernel.sock"], [], "sandbox"])
    );
}

#[tokio::test]
async fn case_08_no_secret_in_environment_command_lines_or_mounts() {
    let mut app = TestApp::start_with(&[("CANARY_OF_THE_OPERATOR", "canary-other")]).await;
    // The embedded store makes its own keys; they are secrets as well.
    let own = std::fs::read_to_string(app.work_root().join("s3-credentials")).unwrap();
    let mut canaries: Vec<String> = own
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| word.len() >= 16)
        .map(str::to_owned)
        .collect();
    assert!(
        !canaries.is_empty(),
        "the store's keys are not where they were"
    );
    canaries.extend(["canary-other", "canary-api-key"].map(str::to_owned));
    app.kill();
    app.set("SANDBOX_API_KEY", "canary-api-key");
    app.launch().await;
    let code = format!(
        "
import json, os
found, read = [], 0
canaries = json.loads({canaries:?})
for pid in ['self'] + [p for p in os.listdir('/proc') if p.isdigit()]:
    for name in ('environ', 'cmdline', 'mountinfo', 'mounts', 'stat', 'status', 'cgroup', 'maps'):
        try: text = open(f'/proc/{{pid}}/{{name}}', 'rb').read().decode('utf-8', 'replace')
        except OSError: continue
        read += 1
        found += [[pid, name, canary] for canary in canaries if canary in text]
known = ('PATH', 'HOME', 'LANG', 'TMPDIR', 'PYTHONPATH', 'PWD', 'HOSTNAME')
strange = sorted(k for k in os.environ if k not in known and not k.startswith(('XDG_', 'MPL', 'PYTHON')) and not k.endswith('_NUM_THREADS'))
print(json.dumps([found, strange, read > 10]))",
        canaries = serde_json::to_string(&canaries).unwrap(),
    );
    let request = app
        .client
        .post(format!("{}/v1/execute", app.base))
        .header("x-api-key", "canary-api-key")
        .json(&json!({"user_id": "u", "session_id": "s", "code": code}));
    let (status, answer) = answer(request).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["output"], "[[], [], true]\n", "{answer}");
}

#[tokio::test]
async fn case_09_core_pattern_sysrq_and_their_like_cannot_be_written() {
    let app = TestApp::start().await;
    let code = "
import glob, json, os
opened = []
named = ['/proc/sys/kernel/core_pattern', '/proc/sys/kernel/modprobe', '/proc/sys/vm/panic_on_oom', '/proc/sys/fs/binfmt_misc/register', '/proc/sysrq-trigger', '/proc/1/oom_score_adj', '/proc/1/mem', '/proc/1/coredump_filter', '/proc/irq/default_smp_affinity', '/sys/kernel/uevent_helper', '/sys/power/state']
named += glob.glob('/sys/fs/cgroup/**/release_agent', recursive=True) + glob.glob('/sys/fs/cgroup/**/cgroup.procs', recursive=True) + glob.glob('/sys/fs/cgroup/**/memory.limit_in_bytes', recursive=True)
named += glob.glob('/proc/sys/**', recursive=True)
for path in named:
    if os.path.isdir(path): continue
    try: os.close(os.open(path, os.O_WRONLY)); opened.append(path)
    except OSError: pass
print(json.dumps([opened, len(named) > 100, [p for p in ('/proc/kcore', '/proc/keys', '/proc/timer_list', '/proc/sched_debug') if os.path.exists(p) and open(p, 'rb').read(1)]]))";
    assert_eq!(printed_json(&app, "s", code).await, json!([[], true, []]));
}

#[tokio::test]
async fn case_10_programs_in_scratch_do_not_run() {
    let app = TestApp::start().await;
    let code = "
import glob, json, os, shutil, subprocess
ran = []
for folder in ('/tmp', '/dev/shm'):
    script, program = folder + '/script', folder + '/program'
    open(script, 'w').write('#!/bin/sh\\necho ran')
    shutil.copy('/bin/true', program)
    for path in (script, program):
        os.chmod(path, 0o755)
        try: subprocess.run([path]); ran.append(path)
        except PermissionError: pass
    # A dynamic loader maps the program by itself, which noexec forbids too.
    for loader in glob.glob('/lib64/ld-linux*') + glob.glob('/lib/ld-linux*'):
        if subprocess.run([loader, program], capture_output=True).returncode == 0: ran.append([loader, program])
print(json.dumps(ran))";
    assert_eq!(printed_json(&app, "s", code).await, json!([]));
}

#[tokio::test]
async fn case_10_scratch_is_small() {
    let app = TestApp::start().await;
    let code = "
import os
for folder, size in (('/tmp', 80), ('/dev/shm', 80)):
    try: open(folder + '/big', 'wb').write(b'x' * (size << 20))
    except OSError as error: print(error.strerror)
    os.remove(folder + '/big')
try:
    for i in range(1000000): open(f'/tmp/{i}', 'w').close()
except OSError as error: print(error.strerror, i < 100000)";
    assert_eq!(
        output(&app, "s", code).await,
        "No space left on device\nNo space left on device\nNo space left on device True\n"
    );
}
