//! What the service adds to the bare cost of running code, in ratios measured in one run, interleaved.
//! `./ctl.sh bench` or `cargo bench --bench overhead`. Needs root, like the service itself.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark speaks to the terminal and stops where something is wrong"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const BINARY: &str = env!("CARGO_BIN_EXE_cellblock");
const WARM_ROUNDS: usize = 20;
const WARM_PER_ROUND: usize = 100;
const COLD_COUNT: usize = 20;
const CELL: &str = "x += 1; x";

/// The floor: the same compile, exec, repr and JSON over a Unix socket, with no service and no container.
const RAW_REPL: &str = r#"
import ast, json, os, socket, sys
server = socket.socket(socket.AF_UNIX); server.bind(sys.argv[1]); server.listen(1)
print("ready", flush=True)
link, _ = server.accept(); names = {"x": 0}
def receive(count):
    data = b""
    while len(data) < count:
        more = link.recv(count - len(data))
        if not more: sys.exit()
        data += more
    return data
while True:
    code = json.loads(receive(int.from_bytes(receive(4), "big")))["code"]
    tree = ast.parse(code); last = ast.Expression(tree.body.pop().value)
    exec(compile(tree, "<cell>", "exec"), names)
    answer = json.dumps({"output": repr(eval(compile(last, "<cell>", "eval"), names)) + "\n"}).encode()
    link.sendall(len(answer).to_bytes(4, "big") + answer)
"#;

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let mut raw = RawRepl::start(folder.path());
    let mut service = Service::start(folder.path());
    service.run("warm", "x = 0");
    service.run(
        "files",
        "x = 0\nfor i in range(1000): open(f'f{i}', 'w').write('x')",
    );
    service.run("files", CELL);

    let (mut bare, mut warm, mut files) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..WARM_ROUNDS {
        for _ in 0..WARM_PER_ROUND {
            bare.push(timed(|| raw.run(CELL)));
        }
        for _ in 0..WARM_PER_ROUND {
            warm.push(timed(|| drop(service.run("warm", CELL))));
        }
        for _ in 0..10 {
            files.push(timed(|| drop(service.run("files", CELL))));
        }
    }
    let mut artifact = Vec::new();
    for n in 0..100 {
        let code = format!("open('out.bin', 'wb').write(b'{n:04}' * 2560); None");
        artifact.push(timed(|| {
            assert!(service.run("artifact", &code).contains("X-Amz-Signature"))
        }));
    }
    artifact.remove(0);
    let mut cold = Vec::new();
    for n in 0..COLD_COUNT {
        let session = format!("cold{n}");
        cold.push(timed(|| drop(service.run(&session, "1 + 1"))));
        service.post(
            "/v1/sandbox/stop",
            &format!(r#"{{"user_id":"u","session_id":"{session}"}}"#),
        );
    }
    let mut reset = Vec::new();
    for _ in 0..20 {
        reset.push(timed(|| {
            drop(service.post(
                "/v1/sandbox/reset",
                r#"{"user_id":"u","session_id":"warm"}"#,
            ))
        }));
        service.run("warm", "x = 0");
    }

    let floor = median(&bare);
    println!("| work | p50 | p99 | against the raw socket (p50) |");
    println!("|---|---|---|---|");
    row("raw Unix-socket REPL, no container", &bare, floor);
    row("warm execute over HTTP", &warm, floor);
    row("warm execute, 1,000 unchanged files", &files, floor);
    row(
        "execute that makes one 10 kB artifact, stored and linked",
        &artifact,
        floor,
    );
    row("reset", &reset, floor);
    row("first answer of a new session, no preload", &cold, floor);
    let added = median(&files).saturating_sub(median(&warm));
    println!(
        "\n1,000 unchanged files add {:.2} ms to an execute.",
        added.as_secs_f64() * 1e3
    );
}

fn timed(work: impl FnOnce()) -> Duration {
    let started = Instant::now();
    work();
    started.elapsed()
}

fn quantile(times: &[Duration], part: f64) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort();
    sorted[((sorted.len() - 1) as f64 * part).round() as usize]
}

fn median(times: &[Duration]) -> Duration {
    quantile(times, 0.5)
}

fn row(name: &str, times: &[Duration], floor: Duration) {
    let shown = |time: Duration| match time.as_secs_f64() {
        seconds if seconds < 1e-3 => format!("{:.0} µs", seconds * 1e6),
        seconds => format!("{:.2} ms", seconds * 1e3),
    };
    let ratio = median(times).as_secs_f64() / floor.as_secs_f64();
    println!(
        "| {name} | {} | {} | {ratio:.1} |",
        shown(median(times)),
        shown(quantile(times, 0.99))
    );
}

struct RawRepl {
    child: Child,
    link: UnixStream,
}

impl RawRepl {
    fn start(folder: &Path) -> Self {
        let socket = folder.join("raw.sock");
        let mut child = Command::new("python3")
            .args(["-c", RAW_REPL])
            .arg(&socket)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let link = UnixStream::connect(socket).unwrap();
        Self { child, link }
    }

    fn run(&mut self, code: &str) {
        let frame = format!(r#"{{"code":"{code}"}}"#);
        let packet = [&(frame.len() as u32).to_be_bytes(), frame.as_bytes()].concat();
        self.link.write_all(&packet).unwrap();
        let mut length = [0; 4];
        self.link.read_exact(&mut length).unwrap();
        let mut answer = vec![0; u32::from_be_bytes(length) as usize];
        self.link.read_exact(&mut answer).unwrap();
    }
}

impl Drop for RawRepl {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// The real service, spoken to over one keep-alive connection by the smallest client there is.
struct Service {
    child: Child,
    link: BufReader<TcpStream>,
    command: Box<dyn Fn(&str) -> Command>,
}

impl Service {
    fn start(folder: &Path) -> Self {
        let work_root = folder.join("work");
        let root = work_root.clone();
        let command = move |subcommand: &str| {
            let mut command = Command::new(BINARY);
            let settings = [
                ("PORT", "0"),
                ("EMBEDDED_S3_ADDR", "127.0.0.1:0"),
                ("SANDBOX_API_KEY", ""),
                ("MAX_TOTAL_FILES", "2000"),
            ];
            command
                .arg(subcommand)
                .envs(settings)
                .env("WORK_ROOT", &root)
                .current_dir(std::env::temp_dir());
            command.stdout(Stdio::null()).stderr(Stdio::null());
            command
        };
        let child = command("serve").spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        let address = loop {
            assert!(
                Instant::now() < deadline,
                "the service does not start; `cellblock doctor` may say why"
            );
            if let Ok(bytes) = std::fs::read(work_root.join("service.json"))
                && let Ok(service) = serde_json::from_slice::<serde_json::Value>(&bytes)
            {
                break service["address"].as_str().unwrap().to_owned();
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            child,
            link: BufReader::new(stream),
            command: Box::new(command),
        }
    }

    fn run(&mut self, session: &str, code: &str) -> String {
        let body = serde_json::json!({"user_id": "u", "session_id": session, "code": code, "timeout_seconds": 60}).to_string();
        let answer = self.post("/v1/execute", &body);
        assert!(answer.contains(r#""status":"ok""#), "{answer}");
        answer
    }

    fn post(&mut self, path: &str, body: &str) -> String {
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.link.get_mut().write_all(request.as_bytes()).unwrap();
        let mut length = 0;
        loop {
            let mut line = String::new();
            self.link.read_line(&mut line).unwrap();
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut answer = vec![0; length];
        self.link.read_exact(&mut answer).unwrap();
        String::from_utf8(answer).unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
        let _purged = (self.command)("purge").status();
    }
}
