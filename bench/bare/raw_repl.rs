//! The floor of a warm execute: `peers/raw_repl.py` behind a Unix socket, with no service and no container.
//! Never more than one client per REPL. Invariant: the process goes with its owner.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::json;

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/bench/peers/raw_repl.py");

pub struct RawRepl {
    child: Child,
    link: UnixStream,
}

impl RawRepl {
    /// With the interpreter that Cellblock's sandboxes have: how it was built matters more than anything else here.
    pub fn start(python: &Path, socket: &Path) -> Self {
        let mut child = Command::new(python)
            .args(["-I", "-S", PROGRAM])
            .arg(socket)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "ready\n");
        let link = UnixStream::connect(socket).unwrap();
        Self { child, link }
    }

    /// The answer's JSON. The last statement of `code` must be an expression.
    pub fn run(&mut self, code: &str) -> Vec<u8> {
        let frame = json!({ "code": code }).to_string();
        let packet = [&(frame.len() as u32).to_be_bytes(), frame.as_bytes()].concat();
        self.link.write_all(&packet).unwrap();
        let mut length = [0; 4];
        self.link.read_exact(&mut length).unwrap();
        let mut answer = vec![0; u32::from_be_bytes(length) as usize];
        self.link.read_exact(&mut answer).unwrap();
        answer
    }
}

impl Drop for RawRepl {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}
