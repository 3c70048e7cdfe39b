//! Memory as the kernel accounts for it: PSS, which shares common pages out among those that map them.
//! Never asks anybody but `/proc`. Invariant: a process that ends meanwhile counts as nothing.

use std::fs;

/// PSS of one process in bytes.
pub fn pss_of_process(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// PSS of everything that each container consists of: what is in its cgroup, and the shim that carries its id as an argument.
pub fn pss_of_containers(container_ids: &[String]) -> Vec<u64> {
    let mut sums = vec![0; container_ids.len()];
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let of_process = |file: &str| {
            let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (cgroup, command) = (of_process("cgroup"), of_process("cmdline"));
        let is_shim = command.contains("containerd-shim");
        let owner = container_ids
            .iter()
            .position(|id| cgroup.contains(id) || (is_shim && command.contains(id)));
        if let Some(owner) = owner {
            sums[owner] += pss_of_process(pid);
        }
    }
    sums
}
