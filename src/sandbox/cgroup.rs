//! The cgroups of sandboxes: where they are, what they measured, and their removal. Version 1 and version 2.
//! Never sets a limit: that is `cgroup_limits.rs`; this file refuses hosts where one could not be set.
//! Invariant: the memory, pids and cpu controllers are all there, or no sandbox is made.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Usage;
use super::process::{self, Process};

const ROOT: &str = "/sys/fs/cgroup";
/// The one cgroup under which every sandbox of every deployment lives.
pub const PARENT: &str = "cellblock";
const REQUIRED: [&str; 3] = ["memory", "pids", "cpu"];
/// Joined on version 1 where they are mounted: cpu time is counted here, and device nodes are refused.
const OPTIONAL: [&str; 2] = ["cpuacct", "devices"];

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("cgroups are not mounted at /sys/fs/cgroup; mount them (most systems do at boot)")]
    NotMounted,
    #[error(
        "the cgroup controller {0} is missing, so its limit could not be enforced; enable it in the kernel or delegate it to this service"
    )]
    MissingController(&'static str),
    #[error("cgroup {path} cannot be written: {source}; run the service as root")]
    NotWritable {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("limit {path} could not be set to {value}: {source}")]
    NotSet {
        path: PathBuf,
        value: String,
        source: std::io::Error,
    },
    #[error("cgroup {0} is still busy")]
    Busy(PathBuf),
}

/// The cgroup hierarchies of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hierarchy {
    /// Every mount point that holds controllers, by controller.
    V1 {
        mounts: BTreeMap<String, PathBuf>,
    },
    V2 {
        root: PathBuf,
    },
}

impl Hierarchy {
    /// Reads the host's mounts; says nothing yet about rights.
    pub fn detect() -> Result<Self, CgroupError> {
        let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Self::from_mountinfo(&mountinfo).ok_or(CgroupError::NotMounted)
    }

    fn from_mountinfo(mountinfo: &str) -> Option<Self> {
        let mut mounts = BTreeMap::new();
        for line in mountinfo.lines() {
            let (before, after) = line.split_once(" - ")?;
            let mount_point = PathBuf::from(before.split(' ').nth(4)?);
            let kind = after.split(' ').next()?;
            if kind == "cgroup2" && mount_point == Path::new(ROOT) {
                return Some(Self::V2 { root: mount_point });
            }
            if kind == "cgroup" && mount_point.parent() == Some(Path::new(ROOT)) {
                let names = mount_point.file_name()?.to_str()?.to_owned();
                for name in names.split(',') {
                    mounts.insert(name.to_owned(), mount_point.clone());
                }
            }
        }
        (!mounts.is_empty()).then_some(Self::V1 { mounts })
    }

    pub fn version(&self) -> u8 {
        match self {
            Self::V1 { .. } => 1,
            Self::V2 { .. } => 2,
        }
    }

    /// Makes the parent cgroup and checks that every limit can be enforced below it.
    pub fn prepare(&self) -> Result<(), CgroupError> {
        match self {
            Self::V1 { mounts } => {
                for name in REQUIRED {
                    let mount = mounts
                        .get(name)
                        .ok_or(CgroupError::MissingController(name))?;
                    make_writable_dir(&mount.join(PARENT))?;
                }
                Ok(())
            }
            Self::V2 { root } => {
                let parent = root.join(PARENT);
                make_writable_dir(&parent)?;
                for name in REQUIRED {
                    // Best effort: what counts is whether the controller is there afterwards.
                    let enable = format!("+{name}");
                    let _ = std::fs::write(root.join("cgroup.subtree_control"), &enable);
                    let _ = std::fs::write(parent.join("cgroup.subtree_control"), &enable);
                    if !lists(&parent.join("cgroup.subtree_control"), name) {
                        return Err(CgroupError::MissingController(name));
                    }
                }
                Ok(())
            }
        }
    }

    /// Whether memory+swap can be limited. Kernels without swap accounting lack the file.
    pub fn limits_swap(&self) -> bool {
        match self {
            Self::V1 { mounts } => mounts
                .get("memory")
                .is_some_and(|mount| mount.join("memory.memsw.limit_in_bytes").exists()),
            Self::V2 { root } => root.join(PARENT).join("memory.swap.max").exists(),
        }
    }

    /// The directories of one sandbox, one per hierarchy that it joins.
    pub fn directories(&self, cgroup: &str) -> Vec<PathBuf> {
        let mut directories: Vec<PathBuf> = match self {
            Self::V1 { mounts } => REQUIRED
                .iter()
                .chain(&OPTIONAL)
                .filter_map(|name| Some(mounts.get(*name)?.join(cgroup)))
                .collect(),
            Self::V2 { root } => vec![root.join(cgroup)],
        };
        // cpu and cpuacct are often one hierarchy.
        directories.sort();
        directories.dedup();
        directories
    }

    pub fn usage(&self, cgroup: &str) -> Usage {
        match self {
            Self::V1 { mounts } => {
                let file = |controller: &str, name: &str| {
                    mounts
                        .get(controller)
                        .and_then(|mount| read(&mount.join(cgroup).join(name)))
                };
                Usage {
                    memory_bytes: file("memory", "memory.usage_in_bytes").and_then(number),
                    cpu_seconds: file("cpuacct", "cpuacct.usage")
                        .and_then(number)
                        .map(|nanos| nanos as f64 / 1e9),
                    oom_kills: file("memory", "memory.oom_control")
                        .and_then(|text| keyed(&text, "oom_kill"))
                        .unwrap_or(0),
                }
            }
            Self::V2 { root } => {
                let file = |name: &str| read(&root.join(cgroup).join(name));
                Usage {
                    memory_bytes: file("memory.current").and_then(number),
                    cpu_seconds: file("cpu.stat")
                        .and_then(|text| keyed(&text, "usage_usec"))
                        .map(|micros| micros as f64 / 1e6),
                    oom_kills: file("memory.events")
                        .and_then(|text| keyed(&text, "oom_kill"))
                        .unwrap_or(0),
                }
            }
        }
    }

    /// The cgroup that a process of this host is in, as a path below the mount points; none if it cannot be told.
    pub fn of_process(&self, pid: i32) -> Option<String> {
        self.own_line(&read(Path::new(&format!("/proc/{pid}/cgroup")))?)
    }

    fn own_line(&self, text: &str) -> Option<String> {
        text.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let ours = match self {
                Self::V1 { .. } => controllers.split(',').any(|name| name == "memory"),
                Self::V2 { .. } => controllers.is_empty(),
            };
            ours.then(|| path.trim_start_matches('/').to_owned())
        })
    }

    /// Whether the cgroup was frozen, as `docker pause` does it; none if it cannot be seen from here.
    pub fn is_frozen(&self, cgroup: &str) -> Option<bool> {
        match self {
            Self::V1 { mounts } => {
                let state = read(&mounts.get("freezer")?.join(cgroup).join("freezer.state"))?;
                Some(state.trim() != "THAWED")
            }
            Self::V2 { root } => {
                let events = read(&root.join(cgroup).join("cgroup.events"))?;
                Some(keyed(&events, "frozen")? != 0)
            }
        }
    }

    /// Kills whatever still runs in the cgroup (a create that was cut short leaves processes) and removes it.
    pub fn remove(&self, cgroup: &str, limit: Duration) -> Result<bool, CgroupError> {
        let deadline = Instant::now() + limit;
        let mut existed = false;
        for directory in self.directories(cgroup) {
            existed |= remove_directory(&directory, deadline)?;
        }
        Ok(existed)
    }
}

fn remove_directory(directory: &Path, deadline: Instant) -> Result<bool, CgroupError> {
    let mut pause = Duration::from_micros(200);
    loop {
        match std::fs::remove_dir(directory) {
            Ok(()) => return Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            Err(_) if Instant::now() < deadline => kill_members(directory),
            Err(_) => return Err(CgroupError::Busy(directory.to_owned())),
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

fn kill_members(directory: &Path) {
    let members = read(&directory.join("cgroup.procs")).unwrap_or_default();
    for pid in members.lines().filter_map(|line| line.parse().ok()) {
        let Some(member) = process::start_ticks(pid).and_then(|ticks| Process::open(pid, ticks))
        else {
            continue;
        };
        // The pidfd is held: if the pid is still listed, it is this process that is listed.
        if lists(&directory.join("cgroup.procs"), &pid.to_string()) {
            member.kill_and_wait(Duration::from_secs(1));
        }
    }
}

pub fn make_writable_dir(path: &Path) -> Result<(), CgroupError> {
    let not_writable = |source| CgroupError::NotWritable {
        path: path.to_owned(),
        source,
    };
    std::fs::create_dir_all(path).map_err(not_writable)?;
    let rights = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    rustix::fs::access(path, rights).map_err(|errno| not_writable(errno.into()))
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

fn number(text: String) -> Option<u64> {
    text.trim().parse().ok()
}

fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == key).then(|| value.trim().parse().ok())?
    })
}

fn lists(path: &Path, word: &str) -> bool {
    read(path).is_some_and(|text| text.split_ascii_whitespace().any(|entry| entry == word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separate_and_joint_v1_controllers_are_found() {
        let mountinfo = "\
30 24 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n\
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
32 30 0:28 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n\
33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let Some(Hierarchy::V1 { mounts }) = Hierarchy::from_mountinfo(mountinfo) else {
            panic!("version 1 expected");
        };
        assert_eq!(mounts["cpuacct"], Path::new("/sys/fs/cgroup/cpu,cpuacct"));
        assert_eq!(mounts["memory"], Path::new("/sys/fs/cgroup/memory"));
        assert!(!mounts.contains_key("pids") && !mounts.contains_key("unified"));
    }

    #[test]
    fn a_unified_host_is_version_2() {
        let mountinfo = "30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n";
        assert_eq!(Hierarchy::from_mountinfo(mountinfo).unwrap().version(), 2);
    }

    #[test]
    fn the_cgroup_of_a_process_is_read_in_both_versions() {
        let v1 = Hierarchy::V1 {
            mounts: BTreeMap::new(),
        };
        let v2 = Hierarchy::V2 { root: ROOT.into() };
        let text = "9:pids:/docker/p\n4:memory:/docker/m\n1:cpu,cpuacct:/docker/c\n0::/system.slice/docker-u.scope\n";
        assert_eq!(v1.own_line(text).as_deref(), Some("docker/m"));
        assert_eq!(
            v2.own_line(text).as_deref(),
            Some("system.slice/docker-u.scope")
        );
        assert_eq!(v2.own_line("4:memory:/docker/m\n"), None);
    }

    #[test]
    fn a_missing_controller_refuses() {
        let hierarchy = Hierarchy::V1 {
            mounts: BTreeMap::new(),
        };
        assert!(matches!(
            hierarchy.prepare(),
            Err(CgroupError::MissingController("memory"))
        ));
    }

    #[test]
    fn usage_is_read_from_both_versions() {
        let host = tempfile::tempdir().unwrap();
        let v1 = host.path().join("v1");
        let v2 = host.path().join("v2/sb");
        for directory in [v1.join("memory/sb"), v1.join("cpuacct/sb"), v2.clone()] {
            std::fs::create_dir_all(directory).unwrap();
        }
        std::fs::write(v1.join("memory/sb/memory.usage_in_bytes"), "4096\n").unwrap();
        let control = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        std::fs::write(v1.join("memory/sb/memory.oom_control"), control).unwrap();
        std::fs::write(v1.join("cpuacct/sb/cpuacct.usage"), "1500000000\n").unwrap();
        std::fs::write(v2.join("memory.current"), "4096\n").unwrap();
        let events = "low 0\nhigh 0\nmax 7\noom 4\noom_kill 3\noom_group_kill 0\n";
        std::fs::write(v2.join("memory.events"), events).unwrap();
        std::fs::write(v2.join("cpu.stat"), "usage_usec 1500000\nuser_usec 1\n").unwrap();

        let mounts = ["memory", "cpuacct"].map(|name| (name.to_owned(), v1.join(name)));
        let expected = Usage {
            memory_bytes: Some(4096),
            cpu_seconds: Some(1.5),
            oom_kills: 3,
        };
        assert_eq!(
            Hierarchy::V1 {
                mounts: mounts.into()
            }
            .usage("sb"),
            expected
        );
        assert_eq!(
            Hierarchy::V2 {
                root: host.path().join("v2")
            }
            .usage("sb"),
            expected
        );
        assert_eq!(
            Hierarchy::V2 {
                root: host.path().join("v2")
            }
            .usage("gone"),
            Usage::default()
        );
    }
}
