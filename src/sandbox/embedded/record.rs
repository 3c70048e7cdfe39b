//! What is on disk of a sandbox: its folder under the state root, and the init that the helper started.
//! Never holds the truth about life and death: that is asked of the kernel, by pid and start time.
//! Invariant: the folder is made before anything is started, so nothing that runs is without a record.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::sandbox::{ListedSandbox, SandboxHandle};

/// The container's init, as the helper reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Init {
    pub pid: i32,
    pub start_ticks: u64,
}

/// Where libcontainer keeps its own state.
pub fn runtime_dir(container_dir: &Path) -> PathBuf {
    container_dir.join("run")
}

/// Makes the folder of a new container: the OCI bundle.
pub fn write_new(container_dir: &Path, config: &serde_json::Value) -> std::io::Result<()> {
    std::fs::create_dir(container_dir)?;
    let config = serde_json::to_vec(config)?;
    std::fs::write(container_dir.join("config.json"), config)
}

pub fn write_init(container_dir: &Path, init: &Init) -> std::io::Result<()> {
    let staged = container_dir.join(".init.json");
    std::fs::write(&staged, serde_json::to_vec(init)?)?;
    std::fs::rename(staged, container_dir.join("init.json"))
}

/// Every recorded sandbox. One that never got an init has pid 0, which is never alive.
pub fn read_all(state_root: &Path) -> std::io::Result<Vec<ListedSandbox>> {
    let mut sandboxes = Vec::new();
    for entry in std::fs::read_dir(state_root)? {
        let container_dir = entry?.path();
        let Some(container_id) = container_dir.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        if !container_dir.is_dir() {
            continue;
        }
        let init = read::<Init>(&container_dir.join("init.json"));
        let handle = SandboxHandle {
            backend: super::NAME.to_owned(),
            container_id: container_id.to_owned(),
            init_pid: init.map_or(0, |init| init.pid),
            init_start_ticks: init.map_or(0, |init| init.start_ticks),
        };
        // Written first, and never again.
        let config = std::fs::metadata(container_dir.join("config.json"));
        let made = config.and_then(|config| config.modified()).ok();
        sandboxes.push(ListedSandbox::new(handle, made));
    }
    Ok(sandboxes)
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// A container id that never existed before: the name and a random part.
pub fn new_container_id(name: &str) -> String {
    let random = uuid::Uuid::new_v4().simple().to_string();
    format!("{name}-{}", &random[..8])
}

/// Ids become path parts of the state root and of cgroups; anything else is not one of ours.
pub fn is_container_id(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=200).contains(&text.len()) && text.bytes().all(plain) && !text.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_made_and_whole_sandboxes_are_both_listed() {
        let root = tempfile::tempdir().unwrap();
        let (whole, half) = (
            root.path().join("sb_a_b-11111111"),
            root.path().join("sb_c_d-22222222"),
        );
        write_new(&whole, &serde_json::json!({})).unwrap();
        write_init(
            &whole,
            &Init {
                pid: 7,
                start_ticks: 9,
            },
        )
        .unwrap();
        std::fs::create_dir(&half).unwrap();
        let all = read_all(root.path()).unwrap().into_iter();
        let mut all: Vec<SandboxHandle> = all.map(|listed| listed.handle).collect();
        all.sort_by(|one, other| one.container_id.cmp(&other.container_id));
        assert_eq!(
            (
                all[0].container_id.as_str(),
                all[0].init_pid,
                all[0].init_start_ticks
            ),
            ("sb_a_b-11111111", 7, 9)
        );
        assert_eq!(
            (all[1].container_id.as_str(), all[1].init_pid),
            ("sb_c_d-22222222", 0)
        );
    }

    #[test]
    fn ids_are_new_each_time_and_safe_as_path_parts() {
        let (one, other) = (new_container_id("sb_u_s"), new_container_id("sb_u_s"));
        assert!(one != other && is_container_id(&one) && one.starts_with("sb_u_s-"));
        for bad in ["", "..", "a/b", ".hidden", "a b"] {
            assert!(!is_container_id(bad), "{bad}");
        }
    }
}
