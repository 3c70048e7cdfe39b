//! Which backend makes the sandboxes: the operator's choice, or the best this host has. A new backend is one arm here.
//! Never falls back to less isolation than was asked for.
//! Invariant: sandboxes that another backend left in this work root are ended before the chosen one starts.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use include_dir::{Dir, include_dir};
use sha2::{Digest, Sha256};

use super::host_name;
use crate::sandbox::docker::{
    self, Deployment, DockerBackend, DockerConfig, Engine, SharedFolders,
};
use crate::sandbox::embedded::{
    self, EmbeddedBackend, EmbeddedConfig, Python, install_kernel, packages,
};
use crate::sandbox::{Backend, ListedSandbox};
use crate::session;
use crate::settings::{BackendChoice, Settings};
use crate::workspace::Owner;

/// What Python packages the sandboxes have.
pub const REQUIREMENTS: &str = include_str!("../../sandbox-image/requirements.txt");
const DOCKERFILE: &str = include_str!("../../sandbox-image/Dockerfile");
const BUILD_SCRIPT: &str = include_str!("../../sandbox-image/build.sh");
static KERNEL: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/kernel");

/// How long an engine that has sandboxes of ours may take to come back.
const ENGINE_PATIENCE: Duration = Duration::from_secs(30);
const ENGINE_RETRY: Duration = Duration::from_secs(1);
/// The sandbox's user where the service may choose: nobody else's, and never root's.
const SANDBOX_UID: u32 = 65_532;

pub async fn choose(settings: &Settings, work_root: &Path) -> anyhow::Result<Arc<dyn Backend>> {
    let engine = find_engine(work_root).await?;
    let docker = match &engine {
        Ok(engine) => docker(engine, settings, work_root).await,
        Err(reason) => Err(anyhow::Error::msg(reason.clone())),
    };
    let backend: Arc<dyn Backend> = match (settings.sandbox.backend, docker) {
        (BackendChoice::Docker, docker) => {
            Arc::new(docker.context("SANDBOX_BACKEND=docker cannot be used")?)
        }
        (BackendChoice::Auto, Ok(docker)) => Arc::new(docker),
        (BackendChoice::Auto, Err(reason)) => {
            tracing::info!(reason = %format!("{reason:#}"), "docker is not used");
            Arc::new(embedded(settings, work_root).with_context(|| {
                format!("neither backend can be used; docker: {reason:#}; embedded")
            })?)
        }
        (BackendChoice::Embedded, _) => Arc::new(embedded(settings, work_root)?),
    };
    tracing::info!(choice = ?settings.sandbox.backend, backend = backend.name(), "sandbox backend chosen");
    if backend.name() == embedded::NAME
        && packages::locate(REQUIREMENTS, &Python::find()?).is_none()
    {
        tracing::warn!(
            "no Python packages prepared: sandboxes have the standard library only; run `cellblock prepare`"
        );
    }
    end_what_others_left(settings, work_root, engine.ok(), backend.name()).await?;
    Ok(backend)
}

/// Every backend that may have sandboxes of this work root, for those who clean up.
pub async fn all(settings: &Settings, work_root: &Path) -> anyhow::Result<Vec<Arc<dyn Backend>>> {
    let engine = find_engine(work_root).await?;
    if let (BackendChoice::Docker, Err(reason)) = (settings.sandbox.backend, &engine) {
        bail!("{reason}");
    }
    backends_with_sandboxes(settings, work_root, engine.ok())
}

/// The engine, or why there is none. While containers that it made still run, doing without it is no choice: nobody else
/// can take them over or end them, and another sandbox would share their workspace. An engine that restarts is waited for.
async fn find_engine(work_root: &Path) -> anyhow::Result<Result<Engine, String>> {
    let deadline = Instant::now() + ENGINE_PATIENCE;
    loop {
        let found = Engine::find().await;
        match &found {
            Err(reason) if has_living_containers(work_root) => {
                if Instant::now() > deadline {
                    bail!(
                        "sandboxes that Docker made for this WORK_ROOT still run, but {reason}; only the engine can end them or give them back"
                    );
                }
                tracing::warn!(
                    reason,
                    "waiting for the Docker engine that has our sandboxes"
                );
                tokio::time::sleep(ENGINE_RETRY).await;
            }
            _ => return Ok(found),
        }
    }
}

fn has_living_containers(work_root: &Path) -> bool {
    let left = session::left_sandboxes(work_root).into_iter();
    left.filter(|handle| handle.backend == docker::NAME)
        .any(|handle| handle.is_running())
}

fn backends_with_sandboxes(
    settings: &Settings,
    work_root: &Path,
    engine: Option<Engine>,
) -> anyhow::Result<Vec<Arc<dyn Backend>>> {
    let mut backends: Vec<Arc<dyn Backend>> = Vec::new();
    if let Some(engine) = engine {
        let config = docker_config(settings, work_root)?;
        backends.push(Arc::new(DockerBackend::new(engine, config)));
    }
    // Where none was ever made, nothing needs to be set up to find that out.
    let containers = fs::read_dir(containers_root(work_root));
    if containers.is_ok_and(|mut folders| folders.next().is_some()) {
        backends.push(Arc::new(embedded(settings, work_root)?));
    }
    Ok(backends)
}

fn containers_root(work_root: &Path) -> PathBuf {
    work_root.join("containers")
}

/// With another backend than last time, sessions go on with their files and a new sandbox.
async fn end_what_others_left(
    settings: &Settings,
    work_root: &Path,
    engine: Option<Engine>,
    chosen: &str,
) -> anyhow::Result<()> {
    for backend in backends_with_sandboxes(settings, work_root, engine)? {
        if backend.name() == chosen {
            continue;
        }
        for ListedSandbox { handle, .. } in backend.list().await? {
            tracing::warn!(
                container = handle.container_id,
                backend = backend.name(),
                "ending a sandbox of the other backend"
            );
            backend.remove(&handle).await?;
        }
    }
    Ok(())
}

async fn docker(
    engine: &Engine,
    settings: &Settings,
    work_root: &Path,
) -> anyhow::Result<DockerBackend> {
    for warning in &engine.warnings {
        tracing::warn!(warning, "the Docker engine is not all it should be");
    }
    let config = docker_config(settings, work_root)?;
    engine
        .check_runtime(config.runtime.as_deref())
        .map_err(anyhow::Error::msg)?;
    check_image(engine, &config.image).await?;
    for image in &config.allowed_images {
        if let Err(error) = check_image(engine, image).await {
            tracing::warn!(%error, "an image of SANDBOX_ALLOWED_IMAGES cannot be used");
        }
    }
    Ok(DockerBackend::new(engine.clone(), config))
}

async fn check_image(engine: &Engine, image: &str) -> anyhow::Result<()> {
    match engine.image_stamp(image).await {
        Ok(Some(stamp)) if stamp == image_stamp() => {}
        Ok(Some(_)) => tracing::warn!(
            image,
            "the image was built for another version of Cellblock; ./ctl.sh image builds it anew"
        ),
        Ok(None) => bail!(
            "image {image} is not a Cellblock sandbox image: build it with ./ctl.sh image, or FROM such an image"
        ),
        Err(error) => bail!("image {image} is not there ({error}); build it with ./ctl.sh image"),
    }
    Ok(())
}

fn docker_config(settings: &Settings, work_root: &Path) -> anyhow::Result<DockerConfig> {
    let docker = &settings.sandbox.docker;
    Ok(DockerConfig {
        deployment: Deployment {
            id: deployment_id(settings, work_root)?,
            node: settings.worker_id.clone().unwrap_or_else(host_name),
            shared: settings.deployment_id.is_some(),
        },
        image: docker.image.clone(),
        allowed_images: docker.allowed_images.clone(),
        runtime: docker.runtime.clone(),
        folders: SharedFolders {
            work_root: work_root.to_owned(),
            work_root_host: docker.work_root_host.clone(),
        },
    })
}

fn embedded(settings: &Settings, work_root: &Path) -> anyhow::Result<EmbeddedBackend> {
    let python = Python::find()?;
    let runtime_root = work_root.join("runtime");
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&runtime_root)?;
    let kernel_dir = install_kernel(&runtime_root, &kernel_files(&KERNEL), &python)?;
    let packages_dir = packages::locate(REQUIREMENTS, &python);
    let config = EmbeddedConfig {
        state_root: containers_root(work_root),
        runtime_root,
        deployment_id: deployment_id(settings, work_root)?,
        helper: settings.helper.clone(),
        python,
        kernel_dir,
        packages_dir,
    };
    Ok(EmbeddedBackend::new(config)?)
}

fn kernel_files(folder: &'static Dir<'static>) -> Vec<(&'static str, &'static str)> {
    let own = folder
        .files()
        .filter(|file| file.path().extension().is_some_and(|ext| ext == "py"));
    let own = own.filter_map(|file| Some((file.path().to_str()?, file.contents_utf8()?)));
    own.chain(folder.dirs().flat_map(kernel_files)).collect()
}

/// Names what an image built for this version is made of; a label of the image holds it.
pub fn image_stamp() -> String {
    let mut parts = vec![
        ("requirements.txt", REQUIREMENTS),
        ("Dockerfile", DOCKERFILE),
        ("build.sh", BUILD_SCRIPT),
    ];
    parts.extend(kernel_files(&KERNEL));
    let mut hash = Sha256::new();
    for part in parts.iter().flat_map(|(name, text)| [*name, *text]) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex::encode(hash.finalize())[..16].to_owned()
}

/// What the operator set, else one that is stable for this work root and different from any other on this host.
fn deployment_id(settings: &Settings, work_root: &Path) -> anyhow::Result<String> {
    if let Some(id) = &settings.deployment_id {
        return Ok(id.clone());
    }
    let path = work_root.join("deployment");
    if let Some(id) = fs::read_to_string(&path)
        .ok()
        .filter(|id| !id.trim().is_empty())
    {
        return Ok(id.trim().to_owned());
    }
    let id = uuid::Uuid::new_v4().simple().to_string()[..12].to_owned();
    session::write_whole(work_root, "deployment", id.as_bytes())?;
    Ok(id)
}

/// Who code in a sandbox is. A service that is not root cannot give files away, so its sandboxes run as itself.
pub fn sandbox_user() -> Owner {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    if uid.is_root() {
        return Owner {
            uid: SANDBOX_UID,
            gid: SANDBOX_UID,
        };
    }
    Owner {
        uid: uid.as_raw(),
        gid: gid.as_raw(),
    }
}
