//! What the figures were measured on, in one sentence.
//! Never names the host. Invariant: only what was found out is said.

use std::path::Path;
use std::process::Command;

use crate::Bench;

pub fn description(bench: &Bench) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = first_line("/proc/sys/kernel/osrelease");
    let kernel = kernel.split(['-', '+']).next().unwrap_or_default();
    let mut parts = vec![
        format!("{cores} cores"),
        format!("Linux {kernel}"),
        answer_of(&bench.python, &["--version"]),
    ];
    if bench.has_docker() {
        let arguments = ["version", "--format", "{{.Server.Version}}"];
        parts.push(format!(
            "Docker Engine {}",
            answer_of(Path::new("docker"), &arguments)
        ));
    }
    parts.extend(bench.peers.iter().flat_map(|peer| peer.packages.clone()));
    format!(
        "One run on: {}. Release build, embedded S3, default settings but for sizes that the work needs.",
        parts.join(", ")
    )
}

fn first_line(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

fn answer_of(program: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or_else(
        |_| format!("{} unknown", program.display()),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}
