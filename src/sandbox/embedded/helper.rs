//! The helper process: the same binary, run as `sandbox-create`, makes one container with libcontainer and exits.
//! Never runs inside the service: libcontainer forks and changes namespaces, which only a single thread may do.
//! Invariant: user code starts only in the limited cgroup, in a new network namespace, behind the seccomp filter.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use libcontainer::container::builder::ContainerBuilder;
use libcontainer::oci_spec::runtime::Spec;
use libcontainer::syscall::syscall::SyscallType;
use libcontainer::workload::{Executor, ExecutorError, ExecutorValidationError};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::mount::{mount, mount_change, unmount};
use rustix::net::{AddressFamily, SocketType};
use rustix::thread::UnshareFlags;
use seccompiler::BpfProgram;

use super::filter_file;
use super::record::{self, Init};
use crate::sandbox::process::{self, Process};

/// The hidden subcommand that `main` hands to `run_helper` before anything else starts.
pub const SUBCOMMAND: &str = "sandbox-create";

/// Entry of the helper. `args` is what follows the subcommand: the container's folder, the filter file, and the files
/// through which a process enters the container's cgroup.
/// One line of JSON on stdout and 0, or a reason on stderr and 1.
pub fn run_helper(args: impl IntoIterator<Item = OsString>) -> i32 {
    let paths: Vec<PathBuf> = args.into_iter().map(PathBuf::from).collect();
    let outcome = match paths.as_slice() {
        [container_dir, filter_file, cgroup_entries @ ..] if !cgroup_entries.is_empty() => {
            create(container_dir, filter_file, cgroup_entries)
        }
        _ => Err(anyhow::anyhow!(
            "{SUBCOMMAND} is run by the service, not by people"
        )),
    };
    let written = match &outcome {
        Ok(init) => serde_json::to_string(init)
            .map_err(std::io::Error::from)
            .and_then(|line| writeln!(std::io::stdout(), "{line}")),
        Err(error) => writeln!(std::io::stderr(), "{error:#}"),
    };
    i32::from(outcome.is_err() || written.is_err())
}

fn create(
    container_dir: &Path,
    filter_file: &Path,
    cgroup_entries: &[PathBuf],
) -> anyhow::Result<Init> {
    let container_id = container_dir
        .file_name()
        .and_then(|name| name.to_str())
        .context("the container folder has no usable name")?;
    let filters = filter_file::load(filter_file)?;
    std::env::set_current_dir("/")?;
    // libcontainer leaves the groups alone when the spec names none, and ours may be root's.
    rustix::thread::set_thread_groups(&[]).context("supplementary groups could not be dropped")?;
    for entry in cgroup_entries {
        std::fs::write(entry, "0").with_context(|| format!("cgroup {}", entry.display()))?;
    }
    enter_new_network()?;
    hide_cgroups().context("cgroups could not be hidden from libcontainer")?;

    let null = || File::options().read(true).write(true).open("/dev/null");
    let mut container = ContainerBuilder::new(container_id.to_owned(), SyscallType::default())
        .with_root_path(record::runtime_dir(container_dir))?
        .with_executor(FilteredExecutor { filters })
        .with_stdin(null()?)
        .with_stdout(null()?)
        .with_stderr(null()?)
        .as_init(container_dir)
        .with_systemd(false)
        .with_detach(true)
        .build()?;
    let pid = container
        .pid()
        .context("the container has no init")?
        .as_raw();
    let start_ticks = process::start_ticks(pid).context("the init ended before it started")?;
    let init = Init { pid, start_ticks };
    let started = check_cgroup(pid)
        // On disk before user code runs, so that a service that dies now still finds the sandbox.
        .and_then(|()| Ok(record::write_init(container_dir, &init)?))
        .and_then(|()| Ok(container.start()?));
    if let Err(error) = started {
        // It waits for its start for ever, perhaps in no cgroup of ours, where the service would not find it.
        if let Some(waiting) = Process::open(pid, start_ticks) {
            waiting.kill_and_wait(Duration::from_secs(5));
        }
        return Err(error);
    }
    Ok(init)
}

/// This process has entered the limits; the init must have inherited them.
fn check_cgroup(init_pid: i32) -> anyhow::Result<()> {
    let own = std::fs::read_to_string("/proc/self/cgroup")?;
    let inherited = std::fs::read_to_string(format!("/proc/{init_pid}/cgroup"))?;
    ensure!(
        own == inherited,
        "the container is not in the cgroup that limits it"
    );
    Ok(())
}

/// The whole container inherits this namespace. `lo` is brought up here: later nobody has the right to.
fn enter_new_network() -> anyhow::Result<()> {
    let namespace = || std::fs::read_link("/proc/self/ns/net");
    let before = namespace()?;
    new_namespace(UnshareFlags::NEWNET).context("a network namespace could not be made")?;
    ensure!(
        before != namespace()?,
        "the network namespace did not change"
    );
    bring_loopback_up().context("the loopback interface could not be brought up")
}

/// libcontainer would make cgroups of its own and move the container there, out of the limits. With an empty folder in
/// their place, in a mount namespace of the helper's own, it finds no controller and leaves the matter alone.
fn hide_cgroups() -> rustix::io::Result<()> {
    const CGROUPS: &str = "/sys/fs/cgroup";
    new_namespace(UnshareFlags::NEWNS)?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private)?;
    while unmount(CGROUPS, UnmountFlags::DETACH).is_ok() {}
    mount("none", CGROUPS, "tmpfs", MountFlags::RDONLY, None)
}

#[expect(
    unsafe_code,
    reason = "unshare is unsafe for flags that break up file descriptor tables"
)]
fn new_namespace(kind: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: only namespace flags are passed, and this process has one thread.
    unsafe { rustix::thread::unshare_unsafe(kind) }
}

/// `struct ifreq` with its flags member.
#[repr(C)]
struct InterfaceFlags {
    name: [u8; 16],
    flags: i16,
    rest: [u8; 22],
}

#[expect(unsafe_code, reason = "there is no safe call to set interface flags")]
fn bring_loopback_up() -> rustix::io::Result<()> {
    const SIOCSIFFLAGS: rustix::ioctl::Opcode = 0x8914;
    const IFF_UP: i16 = 1;
    let mut request = InterfaceFlags {
        name: [0; 16],
        flags: IFF_UP,
        rest: [0; 22],
    };
    request.name[..2].copy_from_slice(b"lo");
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    // SAFETY: SIOCSIFFLAGS reads one `struct ifreq`, which `InterfaceFlags` is laid out as.
    unsafe {
        let setter = rustix::ioctl::Setter::<SIOCSIFFLAGS, InterfaceFlags>::new(request);
        rustix::ioctl::ioctl(socket, setter)
    }
}

/// Starts the payload behind the seccomp filters. Runs in the container's init, after everything was dropped.
#[derive(Clone)]
struct FilteredExecutor {
    filters: Vec<BpfProgram>,
}

impl FilteredExecutor {
    fn arguments(spec: &Spec) -> anyhow::Result<&[String]> {
        let process = spec.process().as_ref().context("no process")?;
        let arguments = process.args().as_deref().context("no arguments")?;
        if arguments.is_empty() {
            bail!("no arguments");
        }
        Ok(arguments)
    }
}

impl Executor for FilteredExecutor {
    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        let arguments = Self::arguments(spec).map_err(|_| ExecutorError::InvalidArg)?;
        let mut command = std::process::Command::new(&arguments[0]);
        command.args(&arguments[1..]);
        for filter in &self.filters {
            seccompiler::apply_filter(filter)
                .map_err(|error| ExecutorError::Other(error.to_string()))?;
        }
        Err(ExecutorError::Execution(command.exec().into()))
    }

    fn validate(&self, spec: &Spec) -> Result<(), ExecutorValidationError> {
        let refuse = |reason: String| Err(ExecutorValidationError::ArgValidationError(reason));
        let arguments = match Self::arguments(spec) {
            Ok(arguments) => arguments,
            Err(error) => return refuse(error.to_string()),
        };
        match std::fs::metadata(&arguments[0]) {
            Ok(file) if file.permissions().mode() & 0o001 != 0 => Ok(()),
            Ok(_) => refuse(format!(
                "{} is not executable for the sandbox",
                arguments[0]
            )),
            Err(error) => refuse(format!("{} inside the sandbox: {error}", arguments[0])),
        }
    }
}
