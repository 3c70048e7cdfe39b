//! The Docker command line: the image for peers, the sandbox's container run by hand, and the removal of what a run made.
//! Never touches a container or image that is not named after the run. Invariant: names begin with the run's own.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketType};

/// The image that Cellblock's own sandboxes are made of; peers get the same one.
pub const SANDBOX_IMAGE: &str = "cellblock-sandbox";

/// The hardening and the limits that the service gives its containers.
const HARDENING: &str = "--read-only --cap-drop ALL --network none --ipc private --cgroupns private \
    --security-opt no-new-privileges --pids-limit 128 --memory 512m --memory-swap 512m --cpus 1 \
    --ulimit nofile=1024 --ulimit core=0 --oom-score-adj 500 --log-driver none --shm-size 32m \
    --tmpfs /tmp:rw,noexec,nosuid,nodev,size=64m,nr_inodes=16384,mode=1777";
const SECCOMP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/sandbox/seccomp.json");
const SANDBOX_UID: u32 = 65532;

/// What all containers and images of the run in this folder are called.
pub fn run_name(folder: &Path) -> String {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    name.to_lowercase()
}

fn docker(arguments: &[&str]) -> Result<Output, String> {
    let output = Command::new("docker")
        .args(arguments)
        .output()
        .map_err(|error| format!("there is no docker client ({error})"))?;
    match output.status.success() {
        true => Ok(output),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// The sandbox image in the shape that peers expect of one. The error says why there is none.
pub fn peers_image(folder: &Path) -> Result<String, String> {
    docker(&["image", "inspect", SANDBOX_IMAGE])
        .map_err(|_| "no engine answers, or it has no image (./ctl.sh image)".to_owned())?;
    let context = concat!(env!("CARGO_MANIFEST_DIR"), "/bench/peers");
    let (image, base) = (run_name(folder), format!("BASE={SANDBOX_IMAGE}"));
    let build = ["build", "--quiet", "--network", "none", "--build-arg"];
    docker(&[&build[..], &[&base, "--tag", &image, context]].concat())?;
    Ok(image)
}

/// Everything that a run made on the engine.
pub fn remove_all(folder: &Path) {
    let filter = format!("name=^/?{}", run_name(folder));
    if let Ok(listed) = docker(&["ps", "--all", "--quiet", "--filter", &filter]) {
        for id in String::from_utf8_lossy(&listed.stdout).split_whitespace() {
            let _removed = docker(&["rm", "--force", id]);
        }
    }
    let _removed = docker(&["image", "rm", "--force", &run_name(folder)]);
}

/// The sandbox's container by hand, until the kernel in it has sent its first packet.
pub fn run_until_the_kernel_speaks(folder: &Path) -> Duration {
    let home = folder.join("by-hand");
    let (workspace, control) = (home.join("workspace"), home.join("control"));
    let _fresh = std::fs::remove_dir_all(&home);
    let belongs_to_sandbox =
        |path: &Path| std::os::unix::fs::chown(path, Some(SANDBOX_UID), Some(SANDBOX_UID)).unwrap();
    for path in [&workspace, &control] {
        std::fs::create_dir_all(path).unwrap();
        belongs_to_sandbox(path);
    }
    let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    let address = control.join("kernel.sock");
    rustix::net::bind(&listener, &SocketAddrUnix::new(&address).unwrap()).unwrap();
    belongs_to_sandbox(&address);
    rustix::net::listen(&listener, 4).unwrap();

    let name = format!("{}-by-hand", run_name(folder));
    let seccomp = format!("seccomp={SECCOMP}");
    let mounts = [
        format!("type=bind,src={},dst=/workspace", workspace.display()),
        format!(
            "type=bind,src={},dst=/run/cellblock,readonly",
            control.display()
        ),
    ];
    let mut arguments = vec!["run", "--detach", "--name", &name];
    arguments.extend(HARDENING.split_whitespace());
    arguments.extend(["--security-opt", &seccomp]);
    arguments.extend(["--mount", &mounts[0], "--mount", &mounts[1], SANDBOX_IMAGE]);
    let started = Instant::now();
    docker(&arguments).unwrap();
    let link = rustix::net::accept(&listener).unwrap();
    let mut packet = vec![0; 65_536];
    rustix::net::recv(&link, &mut packet[..], RecvFlags::empty()).unwrap();
    let took = started.elapsed();
    docker(&["rm", "--force", &name]).unwrap();
    took
}
