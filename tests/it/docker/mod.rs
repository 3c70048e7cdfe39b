//! What only the docker backend has: containers that anybody can see, and an engine that may hang, restart or be missing.
//! `./ctl.sh test` leaves these out, and says so, where no engine answers; there they fail only if they are asked for.

mod choice;
mod compose;
mod inspect;
mod orphans;
mod surroundings;

use serde_json::Value;

use crate::support::{TestApp, docker};

/// A service on the engine, whichever backend the contract suite is running on.
pub async fn start_with(variables: &[(&str, &str)]) -> TestApp {
    let settings = [&[("SANDBOX_BACKEND", "docker")], variables].concat();
    TestApp::start_with(&settings).await
}

fn inspect(container: &str) -> Value {
    let found: Value = serde_json::from_str(&docker(&["inspect", container])).unwrap();
    found[0].clone()
}

pub fn exists(container: &str) -> bool {
    !docker(&[
        "ps",
        "--all",
        "--quiet",
        "--filter",
        &format!("id={container}"),
    ])
    .is_empty()
}

fn deployment(app: &TestApp) -> String {
    std::fs::read_to_string(app.work_root().join("deployment")).unwrap()
}

/// A container that somebody else made, removed at the end of the test.
struct Foreign(String);

impl Foreign {
    fn start(arguments: &[&str]) -> Self {
        let command = ["run", "--detach", "--network", "none"];
        let program = ["--entrypoint", "sleep", "cellblock-sandbox", "600"];
        Self(docker(&[&command[..], arguments, &program].concat()))
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _may_be_gone = std::process::Command::new("docker")
            .args(["rm", "--force", &self.0])
            .output();
    }
}
