//! From a `SandboxSpec` to the body of `POST /containers/create`. Pure: asks nobody, starts nothing.
//! Never takes a container option from a caller; what is not in `SandboxSpec` is fixed here.
//! Invariant: read-only root, no capability, no new privileges, no network, a uid that is not 0, every limit set.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    MountBindOptions, MountBindOptionsPropagationEnum, MountType, ResourcesUlimits, RestartPolicy,
    RestartPolicyNameEnum,
};

use super::labels::Deployment;
use crate::sandbox::{Limits, OOM_SCORE_ADJ, SECCOMP_PROFILE, SandboxSpec, inside};

/// Where the kernel dials when no socket of the host can be mounted; `kernel/bridge.py` listens there.
const BRIDGE_SOCKET: &str = "@cellblock-kernel";

/// What is the same for all sandboxes of one service.
#[derive(Debug, Clone)]
pub struct Surroundings {
    pub deployment: Deployment,
    pub image: String,
    pub allowed_images: Vec<String>,
    pub runtime: Option<String>,
    pub folders: SharedFolders,
    /// The engine can filter system calls. Where it cannot, the start and `doctor` say so.
    pub has_seccomp: bool,
    /// Kernel links cross by `docker exec` instead of a mounted socket.
    pub bridged: bool,
}

/// The work root by two names: ours, and the engine's if the service itself runs in a container.
#[derive(Debug, Clone)]
pub struct SharedFolders {
    pub work_root: PathBuf,
    pub work_root_host: Option<PathBuf>,
}

impl SharedFolders {
    fn on_host(&self, path: &Path) -> PathBuf {
        match (&self.work_root_host, path.strip_prefix(&self.work_root)) {
            (Some(host), Ok(below)) => host.join(below),
            _ => path.to_owned(),
        }
    }
}

impl Surroundings {
    /// The image for a spec; the error names the image that is not allowed.
    pub fn image_for<'a>(&'a self, spec: &'a SandboxSpec) -> Result<&'a str, String> {
        match &spec.image {
            None => Ok(&self.image),
            Some(image) if *image == self.image || self.allowed_images.contains(image) => Ok(image),
            Some(image) => Err(format!("image {image} is not in SANDBOX_ALLOWED_IMAGES")),
        }
    }
}

pub fn create_body(spec: &SandboxSpec, image: &str, around: &Surroundings) -> ContainerCreateBody {
    let mut environment = inside::environment(spec, "/usr/local/bin");
    if around.bridged {
        environment.push(format!("CELLBLOCK_SOCKET={BRIDGE_SOCKET}"));
    }
    ContainerCreateBody {
        image: Some(image.to_owned()),
        hostname: Some(inside::HOSTNAME.to_owned()),
        user: Some(format!("{}:{}", spec.uid, spec.gid)),
        working_dir: Some(inside::WORKSPACE.to_owned()),
        // Not the image's own: whatever it was built from, the kernel is what runs.
        entrypoint: Some(inside::command("python3")),
        cmd: Some(Vec::new()),
        env: Some(environment),
        labels: Some(around.deployment.labels(spec)),
        attach_stdin: Some(false),
        attach_stdout: Some(false),
        attach_stderr: Some(false),
        tty: Some(false),
        open_stdin: Some(false),
        host_config: Some(host_config(spec, around)),
        ..ContainerCreateBody::default()
    }
}

fn host_config(spec: &SandboxSpec, around: &Surroundings) -> HostConfig {
    let limits = &spec.limits;
    let memory = Some(limits.memory_bytes as i64);
    HostConfig {
        readonly_rootfs: Some(true),
        privileged: Some(false),
        cap_drop: Some(vec!["ALL".to_owned()]),
        security_opt: Some(security_options(around)),
        network_mode: Some(if spec.network { "bridge" } else { "none" }.to_owned()),
        ipc_mode: Some("private".to_owned()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        memory,
        // Memory plus swap: the same number means no swap at all.
        memory_swap: memory,
        nano_cpus: Some((limits.cpus * 1e9).round() as i64),
        pids_limit: Some(i64::from(limits.pids)),
        ulimits: Some(ulimits(limits)),
        oom_score_adj: Some(i64::from(OOM_SCORE_ADJ)),
        shm_size: Some(limits.shm_bytes as i64),
        tmpfs: Some(HashMap::from([("/tmp".to_owned(), scratch(limits))])),
        mounts: Some(mounts(spec, around)),
        log_config: Some(HostConfigLogConfig {
            typ: Some("none".to_owned()),
            config: None,
        }),
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        auto_remove: Some(false),
        init: Some(false),
        runtime: around.runtime.clone(),
        ..HostConfig::default()
    }
}

fn security_options(around: &Surroundings) -> Vec<String> {
    let mut options = vec!["no-new-privileges:true".to_owned()];
    if around.has_seccomp {
        options.push(format!("seccomp={SECCOMP_PROFILE}"));
    }
    options
}

fn ulimits(limits: &Limits) -> Vec<ResourcesUlimits> {
    let hard = |name: &str, value: u64| ResourcesUlimits {
        name: Some(name.to_owned()),
        soft: Some(value as i64),
        hard: Some(value as i64),
    };
    vec![
        hard("nofile", limits.open_files),
        hard("fsize", limits.file_size_bytes),
        hard("core", 0),
    ]
}

fn scratch(limits: &Limits) -> String {
    format!(
        "rw,noexec,nosuid,nodev,mode=1777,size={},nr_inodes={}",
        limits.tmp_bytes, limits.tmp_inodes
    )
}

fn mounts(spec: &SandboxSpec, around: &Surroundings) -> Vec<Mount> {
    let bind = |source: &Path, target: &str, read_only: bool| Mount {
        typ: Some(MountType::BIND),
        source: Some(
            around
                .folders
                .on_host(source)
                .to_string_lossy()
                .into_owned(),
        ),
        target: Some(target.to_owned()),
        read_only: Some(read_only),
        bind_options: Some(MountBindOptions {
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    };
    let mut mounts = vec![bind(&spec.workspace_dir, inside::WORKSPACE, false)];
    if !around.bridged {
        mounts.push(bind(&spec.control_dir, inside::CONTROL, true));
    }
    mounts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::SessionIds;
    use serde_json::json;

    fn spec() -> SandboxSpec {
        SandboxSpec {
            name: "sb_u_s".into(),
            session: Some(
                SessionIds::parse("ada / \"x\"".replace('/', "|").as_str(), "s").unwrap(),
            ),
            image: None,
            workspace_dir: "/work/sessions/u/s/workspace".into(),
            control_dir: "/work/sessions/u/s/control".into(),
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
            preload: vec!["numpy".into()],
        }
    }

    fn around() -> Surroundings {
        Surroundings {
            deployment: Deployment {
                id: "d1".into(),
                node: "n1".into(),
                shared: false,
            },
            image: "box".into(),
            allowed_images: vec!["other".into()],
            runtime: None,
            folders: SharedFolders {
                work_root: "/work".into(),
                work_root_host: None,
            },
            has_seccomp: true,
            bridged: false,
        }
    }

    #[test]
    fn the_whole_body_is_exactly_this() {
        let mut body = serde_json::to_value(create_body(&spec(), "box", &around())).unwrap();
        let options = body["HostConfig"]["SecurityOpt"].take();
        assert_eq!(options[0], "no-new-privileges:true");
        let profile = options[1]
            .as_str()
            .unwrap()
            .strip_prefix("seccomp=")
            .unwrap();
        let profile: serde_json::Value = serde_json::from_str(profile).unwrap();
        assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
        let key = spec().session.unwrap().key();
        let mount = |source: &str, target: &str, read_only: bool| {
            json!({"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only,
                "BindOptions": {"Propagation": "rprivate"}})
        };
        let expected = json!({
            "Image": "box",
            "Hostname": "sandbox",
            "User": "65532:65533",
            "WorkingDir": "/workspace",
            "Entrypoint": ["python3", "-I", "-S", "/opt/cellblock/kernel/main.py"],
            "Cmd": [],
            "Env": ["PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG=C.UTF-8", "HOME=/tmp",
                "CELLBLOCK_PRELOAD=numpy", "OMP_NUM_THREADS=2", "OPENBLAS_NUM_THREADS=2", "MKL_NUM_THREADS=2"],
            "Labels": {"sandbox.managed": "1", "cellblock.deployment": "d1", "cellblock.node": "n1",
                "cellblock.user_key": key.user_key, "cellblock.session_key": key.session_key,
                "cellblock.user_id": "ada | \"x\"", "cellblock.session_id": "s"},
            "AttachStdin": false, "AttachStdout": false, "AttachStderr": false, "Tty": false, "OpenStdin": false,
            "HostConfig": {
                "ReadonlyRootfs": true, "Privileged": false, "CapDrop": ["ALL"], "SecurityOpt": null,
                "NetworkMode": "none", "IpcMode": "private", "CgroupnsMode": "private",
                "Memory": 536870912, "MemorySwap": 536870912, "NanoCpus": 1500000000, "PidsLimit": 128,
                "Ulimits": [{"Name": "nofile", "Soft": 1024, "Hard": 1024},
                    {"Name": "fsize", "Soft": 1073741824, "Hard": 1073741824}, {"Name": "core", "Soft": 0, "Hard": 0}],
                "OomScoreAdj": 500, "ShmSize": 16777216,
                "Tmpfs": {"/tmp": "rw,noexec,nosuid,nodev,mode=1777,size=67108864,nr_inodes=4096"},
                "Mounts": [mount("/work/sessions/u/s/workspace", "/workspace", false),
                    mount("/work/sessions/u/s/control", "/run/cellblock", true)],
                "LogConfig": {"Type": "none"}, "RestartPolicy": {"Name": "no"}, "AutoRemove": false, "Init": false,
            },
        });
        assert_eq!(body, expected);
    }

    #[test]
    fn a_service_in_a_container_mounts_the_host_s_folders() {
        let mut around = around();
        around.folders.work_root_host = Some("/srv/cells".into());
        let body = create_body(&spec(), "box", &around);
        let mounts = body.host_config.unwrap().mounts.unwrap();
        assert_eq!(
            mounts[0].source.as_deref(),
            Some("/srv/cells/sessions/u/s/workspace")
        );
    }

    #[test]
    fn runtime_and_bridge_come_from_the_operator_alone() {
        let mut around = around();
        (around.runtime, around.bridged) = (Some("runsc".into()), true);
        let body = create_body(&spec(), "box", &around);
        let last = body.env.unwrap().pop();
        assert_eq!(last.as_deref(), Some("CELLBLOCK_SOCKET=@cellblock-kernel"));
        assert_eq!(body.host_config.unwrap().runtime.as_deref(), Some("runsc"));
    }

    #[test]
    fn only_allowed_images_are_used() {
        let around = around();
        let with = |image: Option<&str>| SandboxSpec {
            image: image.map(str::to_owned),
            ..spec()
        };
        assert_eq!(around.image_for(&with(None)), Ok("box"));
        assert_eq!(around.image_for(&with(Some("other"))), Ok("other"));
        assert!(
            around
                .image_for(&with(Some("evil")))
                .unwrap_err()
                .contains("evil")
        );
    }

    #[test]
    fn a_sandbox_of_the_pool_has_no_owner_yet_and_filters_find_only_this_deployment() {
        let mut deployment = around().deployment;
        let pooled = SandboxSpec {
            session: None,
            ..spec()
        };
        let labels = deployment.labels(&pooled);
        assert_eq!(labels.get("cellblock.pool").map(String::as_str), Some("1"));
        assert!(deployment.owns(&labels));
        assert_eq!(
            deployment.filters()["label"],
            ["sandbox.managed=1", "cellblock.deployment=d1"]
        );
        deployment.shared = true;
        assert!(deployment.filters()["label"].contains(&"cellblock.node=n1".to_owned()));
        deployment.node = "n2".into();
        assert!(!deployment.owns(&labels));
    }
}
