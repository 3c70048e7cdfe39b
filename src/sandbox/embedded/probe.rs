//! What `cellblock doctor` and the start-up say about this host: one line per need, with what to do about it.
//! Never changes the host beyond the parent cgroup that sandboxes need anyway.
//! Invariant: a failed check always names a remedy.

use std::path::Path;

use super::packages;
use super::python::Python;
use crate::sandbox::BackendError;
use crate::sandbox::cgroup::Hierarchy;

const ROOT_REMEDY: &str = "run the service as root: containers, cgroups and mounts need it";

/// One need of the embedded backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub name: &'static str,
    pub ok: bool,
    pub detail: String,
    pub remedy: &'static str,
}

/// Everything the embedded backend needs, in the order in which to repair it.
pub fn probe(requirements: &str) -> Vec<Check> {
    let mut checks = vec![root()];
    checks.extend(
        ["pid", "ipc", "uts", "mnt", "cgroup", "net"]
            .iter()
            .map(namespace),
    );
    checks.push(cgroups());
    checks.push(seccomp());
    checks.extend(python(requirements));
    checks
}

fn root() -> Check {
    let ok = rustix::process::geteuid().is_root();
    Check {
        name: "root",
        ok,
        detail: if ok { "yes" } else { "no" }.to_owned(),
        remedy: ROOT_REMEDY,
    }
}

fn namespace(kind: &&'static str) -> Check {
    let ok = Path::new("/proc/self/ns").join(kind).exists();
    Check {
        name: "namespace",
        ok,
        detail: format!("{kind}: {}", if ok { "available" } else { "missing" }),
        remedy: "use a kernel built with this namespace",
    }
}

fn cgroups() -> Check {
    let outcome = Hierarchy::detect().and_then(|hierarchy| {
        hierarchy.prepare()?;
        let swap = match (hierarchy.limits_swap(), host_has_swap()) {
            (true, _) => "memory and swap limited",
            (false, false) => "memory limited, host has no swap",
            (false, true) => "memory limited, SWAP NOT LIMITED",
        };
        Ok(format!(
            "version {}, memory, pids and cpu writable, {swap}",
            hierarchy.version()
        ))
    });
    Check {
        name: "cgroups",
        ok: outcome.is_ok(),
        detail: outcome.unwrap_or_else(|error| error.to_string()),
        remedy: "mount cgroups with the memory, pids and cpu controllers and run as root",
    }
}

fn seccomp() -> Check {
    let actions =
        std::fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    let ok = actions
        .split_ascii_whitespace()
        .any(|action| action == "errno");
    Check {
        name: "seccomp",
        ok,
        detail: if ok {
            "filters available"
        } else {
            "no filters"
        }
        .to_owned(),
        remedy: "use a kernel with CONFIG_SECCOMP_FILTER",
    }
}

fn python(requirements: &str) -> Vec<Check> {
    let found = Python::find();
    let mut checks = vec![Check {
        name: "python",
        ok: found.is_ok(),
        detail: match &found {
            Ok(python) => format!(
                "{} at {}",
                python.version_text(),
                python.executable.display()
            ),
            Err(error) => error.to_string(),
        },
        remedy: "install python3, 3.9 or newer",
    }];
    let Ok(python) = found else {
        return checks;
    };
    let has_pip = python.has_pip;
    checks.push(Check {
        name: "pip",
        ok: has_pip,
        detail: if has_pip { "present" } else { "missing" }.to_owned(),
        remedy: "install pip (python3-pip); it is only needed once, to prepare packages",
    });
    let prepared = packages::locate(requirements, &python);
    checks.push(Check {
        name: "packages",
        ok: prepared.is_some(),
        detail: match prepared {
            Some(folder) => folder.display().to_string(),
            None => "not prepared: sandboxes have the standard library only".to_owned(),
        },
        remedy: "prepare them once, with network access",
    });
    checks
}

/// libcontainer needs the rights of root: for cgroup v1 always, for namespaces without a user namespace too.
pub(super) fn require_root() -> Result<(), BackendError> {
    let root = root();
    if root.ok {
        return Ok(());
    }
    let text = format!("the embedded backend needs root; {ROOT_REMEDY}");
    Err(BackendError::Unavailable(text))
}

pub(super) fn host_has_swap() -> bool {
    std::fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().count() > 1)
}

/// Without CAP_SYS_RESOURCE a process cannot go below its own value.
pub(super) fn own_oom_score_adj() -> i32 {
    std::fs::read_to_string("/proc/self/oom_score_adj")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_need_is_named_with_a_remedy() {
        let checks = probe("");
        for name in ["root", "namespace", "cgroups", "seccomp", "python"] {
            assert!(checks.iter().any(|check| check.name == name), "{name}");
        }
        assert!(
            checks
                .iter()
                .all(|check| !check.remedy.is_empty() && !check.detail.is_empty())
        );
    }
}
