//! From a `SandboxSpec` and the host's layout to an OCI runtime config. Pure: no file is read, nothing is started.
//! Never takes a container option from a caller; what is not in `SandboxSpec` is fixed here.
//! Invariant: read-only root, no capability in any set, no new privileges, a uid that is not 0, scratch space bounded.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::python::Python;
use crate::sandbox::SandboxSpec;
use crate::sandbox::inside::{self, CONTROL, KERNEL, PACKAGES, WORKSPACE};

/// Docker's lists; `/sys` is not mounted at all, so its entries are not needed.
const MASKED: [&str; 10] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
];
const READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// The host's side of a container: everything that is the same for all sandboxes of a service.
#[derive(Debug, Clone)]
pub struct Layout<'a> {
    /// Skeleton of the root: mount points, links and a small `/etc`.
    pub root: &'a Path,
    /// Host folders that appear read-only at their own path: `/usr`, the interpreter's prefix.
    pub host_folders: &'a [PathBuf],
    pub passwd: &'a Path,
    pub group: &'a Path,
    pub python: &'a Python,
    pub kernel_dir: &'a Path,
    pub packages_dir: Option<&'a Path>,
    pub oom_score_adj: i32,
}

/// The whole `config.json`.
///
/// No user namespace: files in the workspace must belong to the very uid the host sees (it reads and deletes them), and
/// libcontainer would then insist on systemd's cgroups. The uid is not 0 and no capability exists anyway.
///
/// No network and no cgroup entry: the helper enters a new network namespace and the cgroup itself, before libcontainer.
/// Only there `lo` can still be brought up, and only by its own hand does a process enter a cgroup fast (`cgroup.rs`).
pub fn config(spec: &SandboxSpec, layout: &Layout) -> Value {
    let namespaces = ["pid", "ipc", "uts", "mount", "cgroup"].map(|kind| json!({ "type": kind }));
    json!({
        "ociVersion": "1.0.2",
        "hostname": inside::HOSTNAME,
        "root": { "path": layout.root, "readonly": true },
        "process": process(spec, layout),
        "mounts": mounts(spec, layout),
        "linux": {
            "rootfsPropagation": "private",
            "namespaces": namespaces,
            "maskedPaths": MASKED,
            "readonlyPaths": READ_ONLY,
        },
    })
}

fn process(spec: &SandboxSpec, layout: &Layout) -> Value {
    let rlimit = |kind: &str, value: u64| json!({ "type": kind, "soft": value, "hard": value });
    json!({
        "terminal": false,
        "user": { "uid": spec.uid, "gid": spec.gid, "umask": 0o022 },
        "args": inside::command(&layout.python.executable.to_string_lossy()),
        "env": environment(spec, layout),
        "cwd": WORKSPACE,
        "capabilities": {
            "bounding": [], "effective": [], "inheritable": [], "permitted": [], "ambient": [],
        },
        "rlimits": [
            rlimit("RLIMIT_NOFILE", spec.limits.open_files),
            rlimit("RLIMIT_FSIZE", spec.limits.file_size_bytes),
            rlimit("RLIMIT_CORE", 0),
        ],
        "noNewPrivileges": true,
        "oomScoreAdj": layout.oom_score_adj,
    })
}

/// PATH begins with the interpreter's own folder, so that `python3` in a cell is the same one.
fn environment(spec: &SandboxSpec, layout: &Layout) -> Vec<String> {
    let program_dir = layout
        .python
        .executable
        .parent()
        .unwrap_or(Path::new("/usr/bin"));
    let program_dirs = format!("{}:/usr/local/bin", program_dir.display());
    let mut environment = inside::environment(spec, &program_dirs);
    if layout.packages_dir.is_some() {
        environment.push(format!("CELLBLOCK_PACKAGES={PACKAGES}"));
    }
    environment
}

fn mounts(spec: &SandboxSpec, layout: &Layout) -> Vec<Value> {
    let limits = &spec.limits;
    let mut mounts = vec![
        filesystem("/proc", "proc", &["nosuid", "noexec", "nodev"]),
        filesystem(
            "/dev",
            "tmpfs",
            &["nosuid", "noexec", "mode=755", "size=64k", "nr_inodes=64"],
        ),
        scratch("/dev/shm", limits.shm_bytes, limits.tmp_inodes),
        scratch("/tmp", limits.tmp_bytes, limits.tmp_inodes),
    ];
    // Recursive and recursively read-only: a host that mounts something beneath /usr shows it, but never writable.
    let host_options = ["rbind", "ro", "rro", "rnosuid", "rnodev"];
    for folder in layout.host_folders {
        mounts.push(bind(folder, &folder.to_string_lossy(), &host_options));
    }
    let read_only = ["bind", "ro", "nosuid", "nodev", "noexec"];
    mounts.push(bind(layout.passwd, "/etc/passwd", &read_only));
    mounts.push(bind(layout.group, "/etc/group", &read_only));
    mounts.push(bind(layout.kernel_dir, KERNEL, &read_only));
    mounts.push(bind(&spec.control_dir, CONTROL, &read_only));
    if let Some(packages_dir) = layout.packages_dir {
        // Executable: extension modules are mapped from here.
        let options = ["bind", "ro", "nosuid", "nodev"];
        mounts.push(bind(packages_dir, PACKAGES, &options));
    }
    // Executable too: people build programs and run them.
    let options = ["bind", "rw", "nosuid", "nodev"];
    mounts.push(bind(&spec.workspace_dir, WORKSPACE, &options));
    mounts
}

fn filesystem(destination: &str, kind: &str, options: &[&str]) -> Value {
    json!({ "destination": destination, "type": kind, "source": kind, "options": options })
}

fn scratch(destination: &str, size_bytes: u64, inodes: u64) -> Value {
    let (size, inodes) = (format!("size={size_bytes}"), format!("nr_inodes={inodes}"));
    let options = ["nosuid", "nodev", "noexec", "mode=1777", &size, &inodes];
    filesystem(destination, "tmpfs", &options)
}

fn bind(source: &Path, destination: &str, options: &[&str]) -> Value {
    json!({ "destination": destination, "type": "bind", "source": source, "options": options })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::Limits;
    use oci_spec::runtime::{LinuxNamespaceType, Mount, PosixRlimitType, Spec};

    fn sandbox_spec() -> SandboxSpec {
        SandboxSpec {
            name: "sb_u_s".into(),
            session: None,
            image: None,
            workspace_dir: "/host/workspace".into(),
            control_dir: "/host/control".into(),
            uid: 65532,
            gid: 65533,
            limits: Limits {
                cpus: 1.5,
                memory_bytes: 512 << 20,
                pids: 128,
                open_files: 1024,
                file_size_bytes: 1 << 30,
                tmp_bytes: 64 << 20,
                tmp_inodes: 4096,
                shm_bytes: 16 << 20,
            },
            network: false,
            preload: vec!["numpy".into(), "pandas".into()],
        }
    }

    /// Through the typed form that libcontainer reads: a misspelt field would be lost here and fail a test.
    fn spec() -> Spec {
        let python = Python {
            executable: "/opt/py/bin/python3".into(),
            prefix: "/opt/py".into(),
            version: (3, 12, 1),
            has_pip: true,
        };
        let layout = Layout {
            root: Path::new("/host/root"),
            host_folders: &["/usr".into(), "/opt/py".into()],
            passwd: Path::new("/host/passwd"),
            group: Path::new("/host/group"),
            python: &python,
            kernel_dir: Path::new("/host/kernel"),
            packages_dir: Some(Path::new("/host/packages")),
            oom_score_adj: 500,
        };
        serde_json::from_value(config(&sandbox_spec(), &layout)).unwrap()
    }

    fn mount<'a>(spec: &'a Spec, destination: &str) -> &'a Mount {
        let mounts = spec.mounts().as_ref().unwrap();
        mounts
            .iter()
            .find(|mount| mount.destination() == Path::new(destination))
            .unwrap()
    }

    fn has(mount: &Mount, options: &[&str]) -> bool {
        let present = mount.options().as_ref().unwrap();
        options
            .iter()
            .all(|option| present.iter().any(|other| other == option))
    }

    #[test]
    fn the_root_is_read_only() {
        let spec = spec();
        let root = spec.root().as_ref().unwrap();
        assert_eq!(
            (root.path().as_path(), root.readonly()),
            (Path::new("/host/root"), Some(true))
        );
    }

    #[test]
    fn no_capability_no_new_privilege_no_root() {
        let spec = spec();
        let process = spec.process().as_ref().unwrap();
        let sets = process.capabilities().as_ref().unwrap();
        for set in [
            sets.bounding(),
            sets.effective(),
            sets.inheritable(),
            sets.permitted(),
            sets.ambient(),
        ] {
            assert!(set.as_ref().unwrap().is_empty());
        }
        assert_eq!(process.no_new_privileges(), Some(true));
        assert_eq!((process.user().uid(), process.user().gid()), (65532, 65533));
        assert_eq!(process.user().umask(), Some(0o022));
        assert_eq!(process.oom_score_adj(), Some(500));
        assert_ne!(process.terminal(), Some(true));
    }

    #[test]
    fn namespaces_are_private_and_propagation_is_off() {
        let spec = spec();
        let linux = spec.linux().as_ref().unwrap();
        let kinds: Vec<_> = linux
            .namespaces()
            .as_ref()
            .unwrap()
            .iter()
            .map(|ns| ns.typ())
            .collect();
        use LinuxNamespaceType::{Cgroup, Ipc, Mount, Pid, Uts};
        assert_eq!(kinds, [Pid, Ipc, Uts, Mount, Cgroup]);
        assert!(
            linux
                .namespaces()
                .as_ref()
                .unwrap()
                .iter()
                .all(|ns| ns.path().is_none())
        );
        assert_eq!(linux.rootfs_propagation().as_deref(), Some("private"));
        assert_eq!(spec.hostname().as_deref(), Some("sandbox"));
    }

    #[test]
    fn resource_limits_are_hard() {
        let spec = spec();
        let rlimits = spec.process().as_ref().unwrap().rlimits().as_ref().unwrap();
        let of = |kind| {
            let found = rlimits.iter().find(|limit| limit.typ() == kind).unwrap();
            (found.soft(), found.hard())
        };
        assert_eq!(of(PosixRlimitType::RlimitNofile), (1024, 1024));
        assert_eq!(of(PosixRlimitType::RlimitFsize), (1 << 30, 1 << 30));
        assert_eq!(of(PosixRlimitType::RlimitCore), (0, 0));
    }

    #[test]
    fn only_the_workspace_and_scratch_are_writable() {
        let spec = spec();
        for mount in spec.mounts().as_ref().unwrap() {
            let destination = mount.destination().to_str().unwrap();
            let writable = !has(mount, &["ro"]);
            let expected =
                ["/proc", "/dev", "/dev/shm", "/tmp", "/workspace"].contains(&destination);
            assert_eq!(writable, expected, "{destination}");
            assert!(
                has(mount, &["nosuid"]) || has(mount, &["rnosuid"]),
                "{destination}"
            );
            let devices = !has(mount, &["nodev"]) && !has(mount, &["rnodev"]);
            assert_eq!(devices, destination == "/dev", "{destination}");
        }
    }

    #[test]
    fn scratch_is_bounded_and_not_executable() {
        let spec = spec();
        let bounds = ["noexec", "mode=1777", "nr_inodes=4096"];
        assert!(
            has(mount(&spec, "/tmp"), &bounds) && has(mount(&spec, "/tmp"), &["size=67108864"])
        );
        assert!(
            has(mount(&spec, "/dev/shm"), &bounds)
                && has(mount(&spec, "/dev/shm"), &["size=16777216"])
        );
        assert!(has(mount(&spec, CONTROL), &["noexec"]) && has(mount(&spec, KERNEL), &["noexec"]));
        assert!(has(mount(&spec, "/usr"), &["rbind", "rro"]));
    }

    #[test]
    fn proc_is_masked_as_docker_does() {
        let spec = spec();
        let linux = spec.linux().as_ref().unwrap();
        assert!(
            linux
                .masked_paths()
                .as_ref()
                .unwrap()
                .iter()
                .any(|path| path == "/proc/kcore")
        );
        assert!(
            linux
                .readonly_paths()
                .as_ref()
                .unwrap()
                .iter()
                .any(|path| path == "/proc/sys")
        );
        assert!(has(mount(&spec, "/proc"), &["noexec", "nodev"]));
        let mounts = spec.mounts().as_ref().unwrap();
        assert!(
            !mounts
                .iter()
                .any(|mount| mount.destination().starts_with("/sys"))
        );
    }

    #[test]
    fn the_environment_is_exactly_this() {
        let spec = spec();
        let process = spec.process().as_ref().unwrap();
        assert_eq!(
            process.env().as_ref().unwrap(),
            &[
                "PATH=/opt/py/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
                "LANG=C.UTF-8",
                "HOME=/tmp",
                "CELLBLOCK_PRELOAD=numpy,pandas",
                "OMP_NUM_THREADS=2",
                "OPENBLAS_NUM_THREADS=2",
                "MKL_NUM_THREADS=2",
                "CELLBLOCK_PACKAGES=/opt/cellblock/packages",
            ]
        );
        let args = process.args().as_ref().unwrap();
        assert_eq!(
            args,
            &[
                "/opt/py/bin/python3",
                "-I",
                "-S",
                "/opt/cellblock/kernel/main.py"
            ]
        );
        assert_eq!(process.cwd(), Path::new("/workspace"));
    }
}
