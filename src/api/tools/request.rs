//! What a caller of a tool may say about itself and about the sandbox it wants, checked against what the operator allows.
//! Never touches a sandbox. Invariant: a choice that got through is no looser than the settings.

use std::sync::Arc;

use serde::Deserialize;

use super::DIALECT;
use crate::api::AppState;
use crate::api::problem::Problem;
use crate::model::ids::SessionIds;
use crate::session::{OwnLimits, Terms};

const PYTHON: &str = "python";
pub const RUNTIMES: [&str; 3] = [PYTHON, "node", "bash"];
const DEFAULT_KEY: &str = "default";
const ISOLATED: &str = "isolated";
const MAX_IDLE_SECONDS: u64 = 604_800;

/// Who calls.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Context {
    pub workflow_run_id: Option<String>,
    pub agent_run_id: Option<String>,
    pub user_id: Option<String>,
}

/// `"python"`, or the whole of it.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum SandboxChoice {
    Runtime(String),
    Whole(Box<SandboxRequest>),
}

impl Default for SandboxChoice {
    fn default() -> Self {
        Self::Whole(Box::default())
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxRequest {
    mode: Option<String>,
    runtime: Option<String>,
    image: Option<String>,
    session: Option<String>,
    limits: Option<LimitsRequest>,
    network: Option<NetworkRequest>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsRequest {
    cpu_millicores: Option<u64>,
    memory_mb: Option<u64>,
    timeout_seconds: Option<u64>,
    workspace_mb: Option<u64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct NetworkRequest {
    #[serde(default)]
    enabled: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Compute,
    Code,
}

/// A sandbox that the operator lets a caller have.
#[derive(Debug, Clone)]
pub struct Sandbox {
    pub mode: Mode,
    /// If it is another than Python, which every sandbox has.
    pub runtime: Option<String>,
    pub session: Option<String>,
    pub terms: Terms,
}

impl SandboxChoice {
    pub fn checked(self, state: &Arc<AppState>) -> Result<Sandbox, Problem> {
        let request = match self {
            Self::Runtime(runtime) => SandboxRequest {
                runtime: Some(runtime),
                ..SandboxRequest::default()
            },
            Self::Whole(request) => *request,
        };
        let mode = match request.mode.as_deref() {
            None | Some("compute") => Mode::Compute,
            Some("code") => Mode::Code,
            Some(other) => {
                let detail =
                    format!("sandbox.mode: {other:?} is not known; use \"compute\" or \"code\"");
                return Err(Problem::invalid("sandbox.mode", detail));
            }
        };
        if let Some(runtime) = &request.runtime {
            known_runtime("sandbox.runtime", runtime)?;
        }
        let network = request.network.is_some_and(|network| network.enabled);
        if network {
            network_is_allowed(state)?;
        }
        let limits = request.limits.unwrap_or_default();
        Ok(Sandbox {
            mode,
            runtime: request.runtime.filter(|runtime| runtime != PYTHON),
            session: request.session,
            terms: Terms {
                idle_secs: idle(limits.timeout_seconds)?,
                image: image(state, request.image)?,
                network,
                limits: own_limits(state, &limits)?,
                ..Terms::default()
            },
        })
    }
}

pub fn known_runtime(field: &str, runtime: &str) -> Result<(), Problem> {
    if RUNTIMES.contains(&runtime) {
        return Ok(());
    }
    let detail = format!(
        "{field}: {runtime:?} is not known; use one of {}",
        RUNTIMES.join(", ")
    );
    Err(Problem::invalid(field, detail))
}

fn idle(seconds: Option<u64>) -> Result<Option<u64>, Problem> {
    within(
        "sandbox.limits.timeout_seconds",
        seconds,
        1,
        MAX_IDLE_SECONDS,
    )
}

fn network_is_allowed(state: &Arc<AppState>) -> Result<(), Problem> {
    let field = "sandbox.network.enabled";
    let problem = match (
        state.settings.sandbox.allow_network,
        state.core.backend().name(),
    ) {
        (true, "docker") => return Ok(()),
        (true, _) => "sandboxes of this service have no network: it has no docker backend",
        (false, _) => {
            "sandboxes of this service have no network; its operator may allow it (SANDBOX_ALLOW_NETWORK)"
        }
    };
    Err(Problem::invalid(field, format!("{field}: {problem}")))
}

fn image(state: &Arc<AppState>, image: Option<String>) -> Result<Option<String>, Problem> {
    let docker = &state.settings.sandbox.docker;
    let Some(image) = image.filter(|image| *image != docker.image) else {
        return Ok(None);
    };
    let uses_images = state.core.backend().name() == "docker";
    if uses_images && docker.allowed_images.contains(&image) {
        return Ok(Some(image));
    }
    let detail = match uses_images {
        true => format!("sandbox.image: {image:?} is not in SANDBOX_ALLOWED_IMAGES"),
        false => "sandbox.image: sandboxes of this service are not made from images".to_owned(),
    };
    Err(Problem::invalid("sandbox.image", detail))
}

/// Only tighter than the settings: a request never loosens a limit.
fn own_limits(state: &Arc<AppState>, asked: &LimitsRequest) -> Result<OwnLimits, Problem> {
    let settings = &state.settings;
    let most_millis = (settings.sandbox.cpus * 1000.0) as u64;
    let (most_memory, most_workspace) = (
        settings.sandbox.memory_bytes >> 20,
        settings.files.max_workspace_bytes >> 20,
    );
    let memory = within("sandbox.limits.memory_mb", asked.memory_mb, 64, most_memory)?;
    let workspace = within(
        "sandbox.limits.workspace_mb",
        asked.workspace_mb,
        1,
        most_workspace,
    )?;
    Ok(OwnLimits {
        cpu_millicores: within(
            "sandbox.limits.cpu_millicores",
            asked.cpu_millicores,
            50,
            most_millis,
        )?
        .filter(|millis| *millis != most_millis),
        memory_bytes: memory.filter(|mb| *mb != most_memory).map(|mb| mb << 20),
        workspace_bytes: workspace
            .filter(|mb| *mb != most_workspace)
            .map(|mb| mb << 20),
    })
}

pub fn within(
    field: &str,
    value: Option<u64>,
    least: u64,
    most: u64,
) -> Result<Option<u64>, Problem> {
    match value {
        Some(number) if !(least..=most).contains(&number) => Err(Problem::invalid(
            field,
            format!("{field}: {number} is not between {least} and {most}"),
        )),
        value => Ok(value),
    }
}

/// Which session a caller means: the workflow's, shared by its agents; its own; or its user's.
pub fn resolve(
    context: &Context,
    session_key: Option<&str>,
    sandbox: &Sandbox,
) -> Result<(SessionIds, Option<String>), Problem> {
    let said = [session_key, sandbox.session.as_deref()];
    // Whoever asks for isolation gets it; a name then tells several sessions of that agent apart.
    let isolated = said.contains(&Some(ISOLATED));
    let mut names = said.into_iter().flatten().filter(|name| *name != ISOLATED);
    let key = names.next().unwrap_or(DEFAULT_KEY);
    let workflow = context.workflow_run_id.clone();
    let (kind, field, id) = match (
        &context.workflow_run_id,
        &context.agent_run_id,
        &context.user_id,
    ) {
        (Some(run), _, _) if !isolated => ("workflow", "context.workflow_run_id", run),
        (_, Some(run), _) => ("agent", "context.agent_run_id", run),
        (_, None, _) if isolated => {
            let detail = "context.agent_run_id: an isolated session needs it";
            return Err(Problem::invalid("context.agent_run_id", detail));
        }
        (_, _, Some(user)) => ("user", "context.user_id", user),
        _ => {
            let detail = "context: give workflow_run_id, agent_run_id or user_id";
            return Err(Problem::invalid("context", detail));
        }
    };
    let parts = [(field, id.as_str()), ("session_key", key)];
    let ids = SessionIds::of_dialect_parts(DIALECT, kind, &parts)
        .map_err(|error| Problem::invalid(error.field, error.to_string()))?;
    Ok((ids, workflow))
}
