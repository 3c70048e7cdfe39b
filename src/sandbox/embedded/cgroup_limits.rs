//! The limits of a sandbox's cgroup, written before any process is in it.
//! Never left to libcontainer: it moves a process by pid, which makes the kernel wait 15 ms for an RCU grace period.
//! Invariant: a limit that cannot be written is an error, never a sandbox without it.

use std::path::PathBuf;

use crate::sandbox::Limits;
use crate::sandbox::cgroup::{CgroupError, Hierarchy, make_writable_dir};

const CPU_PERIOD_MICROS: u64 = 100_000;
/// null, zero, full, random, urandom and tty: what a sandbox's `/dev` holds.
const DEVICES: [&str; 6] = [
    "c 1:3 rwm",
    "c 1:5 rwm",
    "c 1:7 rwm",
    "c 1:8 rwm",
    "c 1:9 rwm",
    "c 5:0 rwm",
];

impl Hierarchy {
    /// Makes the cgroup with all its limits, and gives the files into which the helper writes `0` to enter it.
    /// On version 1 that is `tasks`: moving oneself as a single thread is the one move for which the kernel takes no lock.
    pub fn create(&self, cgroup: &str, limits: &Limits) -> Result<Vec<PathBuf>, CgroupError> {
        let directories = self.directories(cgroup);
        for directory in &directories {
            make_writable_dir(directory)?;
        }
        for (path, value) in self.settings(cgroup, limits) {
            std::fs::write(&path, &value).map_err(|source| CgroupError::NotSet {
                path,
                value,
                source,
            })?;
        }
        let entry = match self {
            Self::V1 { .. } => "tasks",
            Self::V2 { .. } => "cgroup.procs",
        };
        Ok(directories.iter().map(|path| path.join(entry)).collect())
    }

    /// Every file to write, in order.
    fn settings(&self, cgroup: &str, limits: &Limits) -> Vec<(PathBuf, String)> {
        let quota = (limits.cpus * CPU_PERIOD_MICROS as f64).round() as u64;
        let quota = quota.max(1_000).to_string();
        let (memory, pids) = (limits.memory_bytes.to_string(), limits.pids.to_string());
        let mut settings = Vec::new();
        match self {
            Self::V1 { mounts } => {
                let mut set = |controller: &str, file: &str, value: &str| {
                    if let Some(mount) = mounts.get(controller) {
                        settings.push((mount.join(cgroup).join(file), value.to_owned()));
                    }
                };
                set("memory", "memory.limit_in_bytes", &memory);
                if self.limits_swap() {
                    // Memory plus swap: the same number means no swap at all.
                    set("memory", "memory.memsw.limit_in_bytes", &memory);
                }
                set("pids", "pids.max", &pids);
                set("cpu", "cpu.cfs_period_us", &CPU_PERIOD_MICROS.to_string());
                set("cpu", "cpu.cfs_quota_us", &quota);
                set("devices", "devices.deny", "a");
                for device in DEVICES {
                    set("devices", "devices.allow", device);
                }
            }
            Self::V2 { root } => {
                let mut set = |file: &str, value: String| {
                    settings.push((root.join(cgroup).join(file), value));
                };
                set("memory.max", memory);
                if self.limits_swap() {
                    set("memory.swap.max", "0".to_owned());
                }
                set("pids.max", pids);
                set("cpu.max", format!("{quota} {CPU_PERIOD_MICROS}"));
            }
        }
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::cgroup::PARENT;
    use std::path::Path;

    fn limits() -> Limits {
        Limits {
            cpus: 1.5,
            memory_bytes: 512 << 20,
            pids: 128,
            open_files: 1024,
            file_size_bytes: 1 << 30,
            tmp_bytes: 64 << 20,
            tmp_inodes: 4096,
            shm_bytes: 16 << 20,
        }
    }

    fn written(hierarchy: &Hierarchy, root: &Path) -> Vec<String> {
        let settings = hierarchy.settings("cellblock/x", &limits());
        let line = |(path, value): &(PathBuf, String)| {
            format!("{} {value}", path.strip_prefix(root).unwrap().display())
        };
        settings.iter().map(line).collect()
    }

    #[test]
    fn every_limit_is_set_on_version_1() {
        let host = tempfile::tempdir().unwrap();
        std::fs::create_dir(host.path().join("memory")).unwrap();
        std::fs::write(host.path().join("memory/memory.memsw.limit_in_bytes"), "").unwrap();
        let names = ["memory", "pids", "cpu", "devices"];
        let mounts = names
            .map(|name| (name.to_owned(), host.path().join(name)))
            .into();
        let settings = written(&Hierarchy::V1 { mounts }, host.path());
        assert_eq!(
            settings[..7],
            [
                "memory/cellblock/x/memory.limit_in_bytes 536870912",
                "memory/cellblock/x/memory.memsw.limit_in_bytes 536870912",
                "pids/cellblock/x/pids.max 128",
                "cpu/cellblock/x/cpu.cfs_period_us 100000",
                "cpu/cellblock/x/cpu.cfs_quota_us 150000",
                "devices/cellblock/x/devices.deny a",
                "devices/cellblock/x/devices.allow c 1:3 rwm",
            ]
        );
    }

    #[test]
    fn every_limit_is_set_on_version_2() {
        let host = tempfile::tempdir().unwrap();
        std::fs::create_dir(host.path().join(PARENT)).unwrap();
        std::fs::write(host.path().join(PARENT).join("memory.swap.max"), "").unwrap();
        let settings = written(
            &Hierarchy::V2 {
                root: host.path().into(),
            },
            host.path(),
        );
        assert_eq!(
            settings,
            [
                "cellblock/x/memory.max 536870912",
                "cellblock/x/memory.swap.max 0",
                "cellblock/x/pids.max 128",
                "cellblock/x/cpu.max 150000 100000",
            ]
        );
    }
}
