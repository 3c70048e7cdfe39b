//! `cellblock doctor`: what this machine offers for sandboxes and storage, and what to do about what is missing.
//! Changes nothing. Invariant: exit code 0 exactly if `serve` would start.
#![expect(
    clippy::print_stdout,
    reason = "this is where the program speaks to the terminal"
)]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use crate::app::backend::{REQUIREMENTS, image_stamp};
use crate::sandbox::docker::Engine;
use crate::sandbox::embedded;
use crate::settings::{BackendChoice, QuotaChoice, Settings};

struct Finding {
    name: &'static str,
    ok: bool,
    /// A service without it still starts.
    optional: bool,
    detail: String,
    remedy: String,
}

pub fn run() -> ExitCode {
    let mut findings = Vec::new();
    let settings = Settings::load();
    findings.push(match &settings {
        Ok((_, unknown)) if unknown.is_empty() => fine("settings", "all valid".to_owned()),
        Ok((_, unknown)) => fine(
            "settings",
            format!(
                "valid; .env has names that are not settings: {}",
                unknown.join(", ")
            ),
        ),
        Err(error) => Finding {
            name: "settings",
            ok: false,
            optional: false,
            detail: error.to_string(),
            remedy: "correct the values above in the environment or in .env".to_owned(),
        },
    });
    if let Ok((settings, _)) = &settings {
        findings.extend(backends(settings));
        findings.push(quota(settings));
        findings.push(store(settings));
        findings.push(address(settings));
    } else {
        findings.extend(embedded_checks());
    }
    for finding in &findings {
        let mark = match (finding.ok, finding.optional) {
            (true, _) => "ok     ",
            (false, true) => "note   ",
            (false, false) => "MISSING",
        };
        println!("{mark}  {:<12} {}", finding.name, finding.detail);
        if !finding.ok && !finding.remedy.is_empty() {
            println!("         {:<12} → {}", "", finding.remedy);
        }
    }
    let ready = findings
        .iter()
        .all(|finding| finding.ok || finding.optional);
    println!(
        "\n{}",
        if ready {
            "This machine can run Cellblock: ./ctl.sh start"
        } else {
            "Cellblock cannot start here yet."
        }
    );
    if ready {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn fine(name: &'static str, detail: String) -> Finding {
    Finding {
        name,
        ok: true,
        optional: false,
        detail,
        remedy: String::new(),
    }
}

fn embedded_checks() -> Vec<Finding> {
    let checks = embedded::probe(REQUIREMENTS).into_iter();
    checks
        .map(|check| Finding {
            name: check.name,
            ok: check.ok,
            // Without them sandboxes work, with less in them.
            optional: matches!(check.name, "pip" | "packages"),
            detail: check.detail,
            remedy: check.remedy.to_owned(),
        })
        .collect()
}

/// What the chosen backend needs must be there; with `auto`, what either of them needs.
fn backends(settings: &Settings) -> Vec<Finding> {
    let (mut docker, mut embedded) = (docker_checks(settings), embedded_checks());
    let ready = |findings: &[Finding]| {
        findings
            .iter()
            .all(|finding| finding.ok || finding.optional)
    };
    let spare = match settings.sandbox.backend {
        BackendChoice::Docker => &mut embedded,
        BackendChoice::Embedded => &mut docker,
        BackendChoice::Auto if ready(&docker) => &mut embedded,
        BackendChoice::Auto => &mut docker,
    };
    spare.iter_mut().for_each(|finding| finding.optional = true);
    let chosen = match settings.sandbox.backend {
        BackendChoice::Docker => "docker",
        BackendChoice::Embedded => "embedded",
        BackendChoice::Auto if ready(&docker) && !docker[0].optional => {
            "docker, which auto prefers"
        }
        BackendChoice::Auto => "embedded, which auto takes where docker is not ready",
    };
    let mut findings = vec![fine("backend", chosen.to_owned())];
    findings.extend(docker);
    findings.extend(embedded);
    findings
}

fn docker_checks(settings: &Settings) -> Vec<Finding> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let found = match &runtime {
        Ok(runtime) => runtime.block_on(Engine::find()),
        Err(error) => Err(error.to_string()),
    };
    let (Ok(runtime), Ok(engine)) = (&runtime, &found) else {
        return vec![Finding {
            name: "docker",
            ok: false,
            optional: false,
            detail: found.err().unwrap_or_default(),
            remedy: "apt-get install docker.io and start the engine, or use SANDBOX_BACKEND=embedded as root".to_owned(),
        }];
    };
    let mut findings = vec![fine("docker", format!("Engine {} answers", engine.version))];
    findings.extend(engine.warnings.iter().map(|warning| Finding {
        name: "docker",
        ok: false,
        optional: true,
        detail: warning.clone(),
        remedy: String::new(),
    }));
    if let Err(problem) = engine.check_runtime(settings.sandbox.docker.runtime.as_deref()) {
        findings.push(Finding {
            name: "runtime",
            ok: false,
            optional: false,
            detail: problem,
            remedy: "add it to the engine's runtimes, or unset SANDBOX_RUNTIME".to_owned(),
        });
    }
    let image = &settings.sandbox.docker.image;
    let stamp = runtime.block_on(engine.image_stamp(image));
    let (ok, optional, detail) = match &stamp {
        Ok(Some(stamp)) if *stamp == image_stamp() => {
            (true, false, format!("{image} is up to date"))
        }
        Ok(Some(_)) => (
            false,
            true,
            format!("{image} was built for another version"),
        ),
        Ok(None) => (
            false,
            false,
            format!("{image} is not a sandbox image of Cellblock"),
        ),
        Err(_) => (false, false, format!("{image} is not there")),
    };
    findings.push(Finding {
        name: "image",
        ok,
        optional,
        detail,
        remedy: "./ctl.sh image".to_owned(),
    });
    findings
}

/// Tried in a folder of its own: this command changes nothing.
fn quota(settings: &Settings) -> Finding {
    let name = "quota";
    if settings.files.workspace_quota == QuotaChoice::Soft {
        return fine(name, "soft, as WORKSPACE_QUOTA says".to_owned());
    }
    let folder = std::env::temp_dir().join(format!("cellblock-doctor-{}", std::process::id()));
    let tried = crate::app::hard_volumes(settings, &folder);
    let _best_effort = std::fs::remove_dir_all(&folder);
    match tried {
        Ok(_) => fine(
            name,
            "hard: each workspace is a file system of its own".to_owned(),
        ),
        Err(error) => Finding {
            name,
            ok: false,
            optional: settings.files.workspace_quota == QuotaChoice::Auto,
            detail: format!("soft: workspaces are only looked at twice a second ({error})"),
            remedy: "run as root on a host with loop devices, ext4 and e2fsprogs".to_owned(),
        },
    }
}

fn store(settings: &Settings) -> Finding {
    if settings.uses_embedded_s3() {
        return can_bind(
            "s3",
            settings.s3.embedded_addr,
            "EMBEDDED_S3_ADDR",
            "embedded server",
        );
    }
    let Some(endpoint) = &settings.s3.endpoint_url else {
        return fine("s3", format!("AWS in {}", settings.s3.region));
    };
    let target = url::Url::parse(endpoint)
        .ok()
        .and_then(|url| url.socket_addrs(|| None).ok())
        .and_then(|found| found.first().copied());
    let reached = target
        .is_some_and(|target| TcpStream::connect_timeout(&target, Duration::from_secs(2)).is_ok());
    Finding {
        name: "s3",
        ok: reached,
        optional: true,
        detail: format!(
            "{endpoint} {}",
            if reached {
                "answers"
            } else {
                "does not answer"
            }
        ),
        remedy: "start that S3 server, or unset S3_ENDPOINT_URL to use the embedded one".to_owned(),
    }
}

fn address(settings: &Settings) -> Finding {
    can_bind(
        "address",
        SocketAddr::new(settings.host, settings.port),
        "HOST or PORT",
        "service",
    )
}

fn can_bind(name: &'static str, address: SocketAddr, setting: &str, what: &str) -> Finding {
    match TcpListener::bind(address) {
        Ok(_) => fine(name, format!("{what} on {address}")),
        // In use is fine if it is us; another program would be the operator's to know.
        Err(error) => Finding {
            name,
            ok: false,
            optional: true,
            detail: format!(
                "{address} cannot be listened on now ({error}); a running cellblock has it, or another program"
            ),
            remedy: format!("if it is another program, stop it or set {setting}"),
        },
    }
}
