//! libcontainer alone: create + start of the container that the embedded backend makes, in a fresh process with one thread.
//! No service, no cgroup, no filter, no Python: its process is `/bin/true`. Invariant: only the two calls are timed.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use libcontainer::container::builder::ContainerBuilder;
use libcontainer::syscall::syscall::SyscallType;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use serde_json::{Value, json};

/// The word by which the benchmark runs itself to make one container.
pub const SUBCOMMAND: &str = "libcontainer";

const CGROUPS: &str = "/sys/fs/cgroup";

/// A bundle like that of a living embedded sandbox (found in `work_root`), but for its process.
pub fn prepare_bundle(work_root: &Path, bundle: &Path) {
    let config = find_config(work_root).expect("an embedded sandbox lives");
    let mut config: Value = serde_json::from_slice(&std::fs::read(config).unwrap()).unwrap();
    config["process"]["args"] = json!(["/bin/true"]);
    std::fs::create_dir_all(bundle).unwrap();
    std::fs::write(bundle.join("config.json"), config.to_string()).unwrap();
}

fn find_config(folder: &Path) -> Option<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    for entry in entries {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if let Some(found) = find_config(&path) {
                return Some(found);
            }
        } else if entry.file_name() == "config.json" {
            return Some(path);
        }
    }
    None
}

/// One container by one fresh process, in mount and network namespaces of its own.
pub fn time_of_one(bundle: &Path) -> Duration {
    let output = Command::new("unshare")
        .args(["--mount", "--net"])
        .arg(std::env::current_exe().unwrap())
        .args([Path::new(SUBCOMMAND), bundle])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let took = said.trim().parse().unwrap_or_else(|_| {
        let reason = String::from_utf8_lossy(&output.stderr);
        panic!("libcontainer made no container: {said} {reason}")
    });
    Duration::from_nanos(took)
}

/// Entry of that process: makes the container, prints the nanoseconds.
pub fn create_and_start(bundle: &Path) -> ExitCode {
    hide_cgroups();
    rustix::thread::set_thread_groups(&[]).unwrap();
    // The container before this one is gone: its process was `/bin/true`.
    let state = bundle.join("state");
    let _fresh = std::fs::remove_dir_all(&state);
    std::fs::create_dir_all(&state).unwrap();
    let started = Instant::now();
    let mut container = ContainerBuilder::new("bench".to_owned(), SyscallType::default())
        .with_root_path(&state)
        .unwrap()
        .as_init(bundle)
        .with_systemd(false)
        .with_detach(true)
        .build()
        .unwrap();
    container.start().unwrap();
    println!("{}", started.elapsed().as_nanos());
    ExitCode::SUCCESS
}

/// libcontainer would make cgroups of its own otherwise, which takes longer than all the rest and leaves them behind.
fn hide_cgroups() {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).unwrap();
    while rustix::mount::unmount(CGROUPS, UnmountFlags::DETACH).is_ok() {}
    rustix::mount::mount("none", CGROUPS, "tmpfs", MountFlags::RDONLY, None).unwrap();
}
