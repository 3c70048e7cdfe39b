//! Settings of a core inside Python: what the caller named, over what the environment says.
//! Never reads `.env`, and nothing about servers: there is no address and no key here. Files leave this machine only if the
//! caller names an S3 store: neither S3_* nor the credentials of AWS in the environment send them anywhere.
//! Invariant: a name or a value that the service would refuse is refused here, in the same words.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cellblock::policy::judge::Judge;
use cellblock::settings::Settings;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// What only a server has.
const OF_SERVERS: &[&str] = &["HOST", "PORT", "SANDBOX_API_KEY", "WORK_ROOT_HOST"];
/// What belongs to the server on this host if the environment names it; only the caller can mean it for this process.
const ONLY_IF_GIVEN: &[&str] = &["WORK_ROOT", "EMBEDDED_S3_ADDR", "LOG_LEVEL"];
/// So do all of these.
const OF_S3: &str = "S3_";
/// Defaults that let any number of processes live beside each other, and leave their terminals alone.
const OWN_DEFAULTS: &[(&str, &str)] = &[("EMBEDDED_S3_ADDR", "127.0.0.1:0"), ("LOG_LEVEL", "warn")];

type Given = BTreeMap<String, String>;

/// The settings and the work root, if one was given.
pub fn local_settings(given: &Given) -> PyResult<(Settings, Option<PathBuf>)> {
    let names = names();
    let unknown: Vec<_> = given.keys().filter(|name| !names.contains(name)).collect();
    if let Some(name) = unknown.first() {
        let allowed = names.join(", ");
        return Err(PyValueError::new_err(format!(
            "{name} is not a setting of local mode; there are: {allowed}"
        )));
    }
    let mut source: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| !is_left_to_servers(name))
        .collect();
    for (name, value) in OWN_DEFAULTS {
        source.insert((*name).to_owned(), (*value).to_owned());
    }
    let spoken = given.iter().filter(|(_, value)| !value.trim().is_empty());
    source.extend(spoken.map(|(name, value)| (name.to_uppercase(), value.clone())));
    let mut settings = Settings::from_source(&source)
        .map_err(|problem| PyValueError::new_err(problem.to_string()))?;
    settings.s3.is_embedded = !source.keys().any(|name| name.starts_with(OF_S3));
    let work_root = source.contains_key("WORK_ROOT");
    let work_root = work_root.then(|| settings.work_root.clone());
    Ok((settings, work_root))
}

fn is_left_to_servers(name: &str) -> bool {
    OF_SERVERS.contains(&name) || ONLY_IF_GIVEN.contains(&name) || name.starts_with(OF_S3)
}

/// As keyword arguments are written.
fn names() -> Vec<String> {
    let table = Settings::table().into_iter().map(|info| info.name);
    let usable = table.filter(|name| !OF_SERVERS.contains(name));
    usable.map(str::to_lowercase).collect()
}

#[pyfunction]
pub fn setting_names() -> Vec<String> {
    names()
}

/// Raises ValueError as the start of a core with these settings would.
#[pyfunction]
pub fn check_settings(settings: Given) -> PyResult<()> {
    local_settings(&settings).map(drop)
}

/// Why the command policy of a core with these settings refuses a line, and the forbidden word if it was one. Without
/// settings: the policy that a service has by default.
#[pyfunction]
pub fn refuse_command(
    py: Python<'_>,
    line: &str,
    settings: Option<Given>,
    helper: PathBuf,
) -> PyResult<Option<(String, Option<String>)>> {
    let settings = match settings {
        Some(given) => local_settings(&given)?.0,
        None => Settings::from_source(&BTreeMap::new())
            .map_err(|problem| PyValueError::new_err(problem.to_string()))?,
    };
    let Some(policy) = settings.dialects.command_policy else {
        return Ok(None);
    };
    // Started anew each time: a process that waited would be shared with the children of a fork. Its end is waited for too.
    let verdict = py.detach(|| Judge::new(policy, helper).check(line));
    Ok(verdict.err().map(|refused| (refused.reason, refused.word)))
}
