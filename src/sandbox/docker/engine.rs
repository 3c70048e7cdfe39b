//! The Docker engine as we use it: found, asked what it can, every call with a time limit and a typed failure.
//! Never makes a container itself. Invariant: no call waits longer than its limit, however the engine hangs.

use std::future::Future;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::SystemInfo;

use super::labels::IMAGE_STAMP;
use crate::sandbox::BackendError;

/// Docker Engine 20.10.
const OLDEST_API: (usize, usize) = (1, 41);
const DEFAULT_HOST: &str = "unix:///var/run/docker.sock";
pub const QUICK: Duration = Duration::from_secs(5);
pub const SLOW: Duration = Duration::from_secs(30);
/// Runtimes whose containers share the host's kernel, so that a socket of the host can be dialled from inside.
const SOCKET_RUNTIMES: [&str; 4] = ["runc", "crun", "io.containerd.runc.v2", "youki"];

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("no such object")]
    NotFound,
    #[error("{0}")]
    Conflict(String),
    #[error("{0}")]
    Refused(String),
    /// No answer, or none that says anything: an error of its own (5xx).
    #[error("the Docker engine does not answer: {0}")]
    Silent(String),
}

impl From<Error> for EngineError {
    fn from(error: Error) -> Self {
        match error {
            Error::DockerResponseServerError {
                status_code,
                message,
            } => match status_code {
                404 => Self::NotFound,
                409 => Self::Conflict(message),
                // An engine in trouble says nothing about the object that it was asked about.
                500.. => Self::Silent(message),
                _ => Self::Refused(message),
            },
            other => Self::Silent(other.to_string()),
        }
    }
}

impl EngineError {
    pub fn into_backend_error(
        self,
        otherwise: impl FnOnce(String) -> BackendError,
    ) -> BackendError {
        match self {
            Self::Silent(reason) => {
                tracing::warn!(reason, "the Docker engine does not answer");
                BackendError::Silent("Docker engine")
            }
            other => otherwise(other.to_string()),
        }
    }
}

/// A call with its time limit.
pub async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, EngineError> {
    match tokio::time::timeout(limit, call).await {
        Ok(outcome) => Ok(outcome?),
        Err(_) => Err(EngineError::Silent(format!("no answer within {limit:?}"))),
    }
}

/// An engine that answered, and what it told of itself.
#[derive(Clone)]
pub struct Engine {
    pub docker: Docker,
    pub version: String,
    pub has_seccomp: bool,
    default_runtime: Option<String>,
    /// Names that `SANDBOX_RUNTIME` may have.
    pub runtimes: Vec<String>,
    /// It runs on another kernel than ours: sockets and pids do not cross.
    pub is_elsewhere: bool,
    /// What is worse than it should be, but no reason not to start.
    pub warnings: Vec<String>,
}

impl Engine {
    /// The engine that `DOCKER_HOST` names, else the local one. The error says what to do.
    pub async fn find() -> Result<Self, String> {
        let unreachable = |error: EngineError| {
            format!(
                "no Docker engine answers ({error}); start it, or let this user reach its socket (group docker)"
            )
        };
        let docker = Docker::connect_with_defaults().map_err(|error| unreachable(error.into()))?;
        let docker = within(QUICK, docker.negotiate_version())
            .await
            .map_err(unreachable)?;
        let api = docker.client_version();
        let info = within(QUICK, docker.info()).await.map_err(unreachable)?;
        let version = info.server_version.clone().unwrap_or_default();
        if (api.major_version, api.minor_version) < OLDEST_API {
            return Err(format!(
                "Docker Engine {version} (API {}.{}) is too old: 20.10 (API 1.41) or newer is needed",
                api.major_version, api.minor_version
            ));
        }
        check_limits(&info)?;
        Ok(Self {
            has_seccomp: has_option(&info, "seccomp"),
            is_elsewhere: is_desktop(&info) || !shares_our_pids().await,
            warnings: warnings(&info),
            default_runtime: info.default_runtime.clone(),
            runtimes: info.runtimes.unwrap_or_default().into_keys().collect(),
            docker,
            version,
        })
    }

    pub fn can_mount_sockets(&self, runtime: Option<&str>) -> bool {
        let runtime = runtime.or(self.default_runtime.as_deref());
        !self.is_elsewhere && runtime.is_none_or(|name| SOCKET_RUNTIMES.contains(&name))
    }

    /// The error names the runtimes there are.
    pub fn check_runtime(&self, runtime: Option<&str>) -> Result<(), String> {
        match runtime {
            Some(name) if !self.runtimes.iter().any(|known| known == name) => Err(format!(
                "SANDBOX_RUNTIME={name} is not a runtime of this engine; it has {}",
                self.runtimes.join(", ")
            )),
            _ => Ok(()),
        }
    }

    /// What the image was built from, as its label says; none if it is not ours. An error if there is no such image.
    pub async fn image_stamp(&self, image: &str) -> Result<Option<String>, EngineError> {
        let found = within(QUICK, self.docker.inspect_image(image)).await?;
        let labels = found.config.and_then(|config| config.labels);
        Ok(labels.and_then(|mut labels| labels.remove(IMAGE_STAMP)))
    }
}

/// A limit that the engine would drop with a warning is a limit that is not there.
fn check_limits(info: &SystemInfo) -> Result<(), String> {
    let needed = [
        ("memory", info.memory_limit),
        ("cpu", info.cpu_cfs_quota),
        ("pids", info.pids_limit),
    ];
    for (name, supported) in needed {
        if supported == Some(false) {
            return Err(format!(
                "the Docker engine cannot limit {name}: enable that cgroup controller on its host"
            ));
        }
    }
    for (option, text) in [
        ("userns", "remaps user ids (userns-remap)"),
        ("rootless", "runs rootless"),
    ] {
        if has_option(info, option) {
            return Err(format!(
                "the Docker engine {text}, so that workspace files would belong to other users than the service expects; use a plain engine, or SANDBOX_BACKEND=embedded"
            ));
        }
    }
    Ok(())
}

fn warnings(info: &SystemInfo) -> Vec<String> {
    let mut warnings = Vec::new();
    if !has_option(info, "seccomp") {
        warnings.push(
            "the engine has no seccomp: sandboxes run without a system-call filter; use a kernel with CONFIG_SECCOMP_FILTER".to_owned(),
        );
    }
    if info.swap_limit == Some(false) {
        warnings.push("the engine cannot limit swap: sandboxes may swap beyond their memory limit if the host has swap; boot with swapaccount=1".to_owned());
    }
    warnings
}

fn has_option(info: &SystemInfo, name: &str) -> bool {
    let options = info.security_options.iter().flatten();
    options
        .filter_map(|option| option.split(',').next())
        .any(|option| option == format!("name={name}"))
}

/// Its containers live in a virtual machine, though its socket is here.
fn is_desktop(info: &SystemInfo) -> bool {
    let system = info.operating_system.as_deref();
    system.is_some_and(|system| system.contains("Docker Desktop"))
}

/// Whether the process behind the engine's socket can be seen from here. It cannot if the engine is remote, or if this
/// service runs in a container with pids of its own.
async fn shares_our_pids() -> bool {
    let host = std::env::var("DOCKER_HOST").unwrap_or_else(|_| DEFAULT_HOST.to_owned());
    let Some(path) = host.strip_prefix("unix://") else {
        return false;
    };
    let Ok(socket) = tokio::net::UnixStream::connect(path).await else {
        return false;
    };
    let peer = socket.peer_cred().ok().and_then(|peer| peer.pid());
    peer.is_some_and(|pid| pid > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(options: &[&str]) -> SystemInfo {
        SystemInfo {
            memory_limit: Some(true),
            cpu_cfs_quota: Some(true),
            pids_limit: Some(true),
            swap_limit: Some(true),
            security_options: Some(options.iter().map(|option| option.to_string()).collect()),
            ..SystemInfo::default()
        }
    }

    #[test]
    fn an_engine_that_cannot_limit_or_maps_users_is_refused() {
        assert!(check_limits(&info(&["name=seccomp,profile=default"])).is_ok());
        let mut without_pids = info(&[]);
        without_pids.pids_limit = Some(false);
        assert!(check_limits(&without_pids).unwrap_err().contains("pids"));
        assert!(check_limits(&info(&["name=userns"])).is_err());
        assert!(check_limits(&info(&["name=rootless"])).is_err());
    }

    #[test]
    fn only_the_engines_word_that_there_is_none_means_that_a_container_is_gone() {
        let answered = |status_code| {
            EngineError::from(Error::DockerResponseServerError {
                status_code,
                message: String::new(),
            })
        };
        assert!(matches!(answered(404), EngineError::NotFound));
        assert!(matches!(answered(400), EngineError::Refused(_)));
        for status_code in [500, 502, 503] {
            assert!(matches!(answered(status_code), EngineError::Silent(_)));
        }
    }

    #[test]
    fn a_missing_filter_is_a_warning() {
        assert!(warnings(&info(&["name=seccomp,profile=builtin"])).is_empty());
        assert!(warnings(&info(&["name=apparmor"]))[0].contains("seccomp"));
        let mut no_swap_limit = info(&["name=seccomp"]);
        no_swap_limit.swap_limit = Some(false);
        assert!(warnings(&no_swap_limit)[0].contains("swap"));
    }
}
