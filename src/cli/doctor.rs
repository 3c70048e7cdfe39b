//! `cellblock doctor`: what this machine offers for sandboxes and storage, and what to do about what is missing.
//! Changes nothing. Invariant: exit code 0 exactly if `serve` would start.
#![expect(
    clippy::print_stdout,
    reason = "this is where the program speaks to the terminal"
)]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use crate::sandbox::embedded;
use crate::settings::Settings;

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
    findings.extend(embedded_checks());
    if let Ok((settings, _)) = &settings {
        findings.push(docker());
        findings.push(store(settings));
        findings.push(address(settings));
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
    let checks = embedded::probe(crate::app::REQUIREMENTS).into_iter();
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

/// Sandboxes need no Docker; this only tells what is there.
fn docker() -> Finding {
    let socket = "/var/run/docker.sock";
    let answers = std::os::unix::net::UnixStream::connect(socket).is_ok();
    let detail = if answers {
        "an engine answers; this version uses the embedded backend"
    } else {
        "no engine; not needed, the embedded backend is used"
    };
    Finding {
        name: "docker",
        ok: answers,
        optional: true,
        detail: detail.to_owned(),
        remedy: String::new(),
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
