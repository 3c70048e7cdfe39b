//! The compose file: that it parses with its variables set, and refuses to without its secrets.

use std::process::{Command, Output};

/// The plugin where there is one, else the older program of its own; both read the same file.
fn compose(environment: &[(&str, &str)]) -> Output {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/compose.yaml");
    let env_file = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/.env.example");
    let has_plugin = Command::new("docker")
        .args(["compose", "version"])
        .output()
        .is_ok_and(|output| output.status.success());
    let mut command = match has_plugin {
        true => {
            let mut docker = Command::new("docker");
            docker.arg("compose");
            docker
        }
        false => Command::new("docker-compose"),
    };
    command
        .args(["--env-file", env_file, "-f", file, "config"])
        .envs(environment.iter().copied())
        .output()
        .expect("docker compose or docker-compose: apt-get install docker-compose")
}

#[test]
fn the_compose_file_parses_once_its_secrets_are_set_and_not_before() {
    let without = compose(&[]);
    let text = String::from_utf8_lossy(&without.stderr).into_owned();
    assert!(!without.status.success(), "{text}");
    assert!(text.contains("deploy/.env"), "{text}");
    let with = compose(&[
        ("SANDBOX_API_KEY", "key"),
        ("MINIO_ROOT_PASSWORD", "secret"),
    ]);
    let text = String::from_utf8_lossy(&with.stdout).into_owned();
    assert!(
        with.status.success(),
        "{}",
        String::from_utf8_lossy(&with.stderr)
    );
    for part in [
        "WORK_ROOT_HOST: /var/lib/cellblock",
        "SANDBOX_BACKEND: docker",
        "minio",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}
