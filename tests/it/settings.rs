//! Settings that cannot be used stop the start, in plain words.

use crate::support::command;

#[test]
fn a_wrong_setting_stops_the_start_with_name_value_and_remedy() {
    for (name, value, remedy) in [
        ("PORT", "eighty", "whole number"),
        ("HOST", "example.com", "IP address"),
        ("SANDBOX_BACKEND", "chroot", "auto, docker, embedded"),
        ("SANDBOX_CPUS", "none", "a number from"),
        ("PRESIGN_EXPIRES_SECONDS", "604801", "604800"),
        ("DELETE_S3_ON_CLEANUP", "maybe", "1 or 0"),
        ("EMBEDDED_S3_ADDR", "here", "127.0.0.1:9000"),
        ("S3_ENDPOINT_URL", "minio", "http://"),
        ("SANDBOX_PRELOAD", "os;rm", "module names"),
        ("LOG_FORMAT", "xml", "text, json"),
        ("LOG_LEVEL", "cellblock=loud", "error, warn, info"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let output = command("serve")
            .env("WORK_ROOT", folder.path())
            .env(name, value)
            .output()
            .unwrap();
        assert!(!output.status.success(), "{name}={value} was accepted");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            text.contains(name) && text.contains(value) && text.contains(remedy),
            "{name}: {text}"
        );
    }
}

#[test]
fn an_open_address_without_a_key_stops_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let output = command("serve")
        .env("WORK_ROOT", folder.path())
        .env("HOST", "0.0.0.0")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && text.contains("SANDBOX_API_KEY"),
        "{text}"
    );
}

#[test]
fn a_taken_port_stops_the_start_and_says_which_setting_to_change() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let folder = tempfile::tempdir().unwrap();
    let output = command("serve")
        .env("WORK_ROOT", folder.path())
        .env("PORT", &port)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && text.contains(&port) && text.contains("PORT"),
        "{text}"
    );
}

#[test]
fn settings_come_from_dot_env_and_the_environment_wins() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join(".env"),
        "PORT=eighty # a comment\nSANDBOX_PIDS=\"5\"\n",
    )
    .unwrap();
    let output = command("serve")
        .current_dir(folder.path())
        .env_remove("PORT")
        .env("SANDBOX_PIDS", "128")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        text.contains("PORT=\"eighty\"") && !text.contains("SANDBOX_PIDS"),
        "{text}"
    );
}

#[test]
fn the_doctor_says_that_this_machine_is_ready_and_version_speaks() {
    let output = command("doctor").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    for part in ["cgroups", "seccomp", "python", "s3", "can run Cellblock"] {
        assert!(text.contains(part), "{text}");
    }
    let version = command("version").output().unwrap();
    assert!(String::from_utf8_lossy(&version.stdout).contains(env!("CARGO_PKG_VERSION")));
    assert_eq!(command("fly").output().unwrap().status.code(), Some(2));
}
