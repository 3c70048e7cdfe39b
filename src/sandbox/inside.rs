//! What every sandbox looks like from inside, whoever makes it: where things are, how the kernel starts, its environment.
//! Pure. Never passes on anything of the service's own environment.
//! Invariant: code finds the same paths and variables on every backend.

use super::SandboxSpec;

pub const WORKSPACE: &str = "/workspace";
pub const CONTROL: &str = "/run/cellblock";
pub const KERNEL: &str = "/opt/cellblock/kernel";
pub const PACKAGES: &str = "/opt/cellblock/packages";
pub const HOSTNAME: &str = "sandbox";

/// The command of a sandbox's init.
pub fn command(python: &str) -> Vec<String> {
    // -S: site-packages may hold .pth files, which are code that would run in every sandbox first.
    let arguments = [python, "-I", "-S", &format!("{KERNEL}/main.py")];
    arguments.map(str::to_owned).to_vec()
}

/// The whole environment. `program_dirs` come first on PATH.
pub fn environment(spec: &SandboxSpec, program_dirs: &str) -> Vec<String> {
    let threads = (spec.limits.cpus.ceil() as u64).max(1);
    vec![
        format!("PATH={program_dirs}:/usr/bin:/bin:/usr/sbin:/sbin"),
        "LANG=C.UTF-8".to_owned(),
        "HOME=/tmp".to_owned(),
        format!("CELLBLOCK_PRELOAD={}", spec.preload.join(",")),
        format!("OMP_NUM_THREADS={threads}"),
        format!("OPENBLAS_NUM_THREADS={threads}"),
        format!("MKL_NUM_THREADS={threads}"),
    ]
}
