//! Figures as Markdown, and their place in a document. Pure.
//! Never changes a word outside the two markers. Invariant: writing the same report twice changes nothing.

use super::figures::{Contender, Figure, Noise, Results, Unit, Work};

pub const BEGIN: &str = "<!-- bench: begin, written by ./ctl.sh bench -->";
pub const END: &str = "<!-- bench: end -->";

/// What each table shows: heading and how it was measured.
const TABLES: &[(Work, &str, &str)] = &[
    (
        Work::Warm,
        "Warm execute",
        "`x += 1; x` in a session that is up, the value in the answer. AutoGen and llm-sandbox keep no variables between two runs: theirs is `x = 0; x += 1; print(x)`.",
    ),
    (
        Work::Print,
        "Print of 100 kB",
        "`print('x' * 99_999)`, the whole text in the answer.",
    ),
    (
        Work::Artifact,
        "One artifact",
        "A cell writes 10 kB of new content; the answer comes when it is stored and has a link. Against one `PutObject` of the same size to the same store.",
    ),
    (
        Work::Program,
        "A bash `true`",
        "`bash -c true` as a program of the sandbox: `sandbox_exec` over HTTP, and the like of the others.",
    ),
    (
        Work::UnchangedFiles,
        "Warm execute beside 1,000 unchanged files",
        "The same cell in a workspace with 1,000 files that are stored already.",
    ),
    (
        Work::Reset,
        "Reset",
        "Until the reset is answered; for ipykernel a restart of the kernel until it is ready.",
    ),
    (
        Work::Cold,
        "First answer, cold",
        "A new session until its first answer, nothing prepared. `docker run`: the same container by hand until the kernel in it speaks. libcontainer: create + start of the same container (namespaces, mounts, `/bin/true`; no cgroup, no filter), timed inside the process.",
    ),
    (
        Work::Pool,
        "First answer from the pool",
        "A new session that takes a sandbox that waits.",
    ),
    (
        Work::PoolPandas,
        "First `import pandas`",
        "A new session's first cell is `import pandas; pandas.DataFrame().size`; the pool has it preloaded, ipykernel is up but has not imported it.",
    ),
    (
        Work::CrowdRate,
        "50 sessions at once: throughput",
        "50 client threads, one session each, `x += 1; x` as fast as answers come; cells per second, higher is better.",
    ),
    (
        Work::CrowdTime,
        "50 sessions at once: time of one cell",
        "From the same seconds.",
    ),
    (
        Work::SandboxMemory,
        "Memory of an idle session",
        "PSS of all processes of a sandbox that has run one cell (docker: with its shim), the mean of those that live; of the kernel process of ipykernel, which has no sandbox.",
    ),
    (
        Work::ServiceMemory,
        "Memory of the service per idle session",
        "What the PSS of the service grows by, per session.",
    ),
    (
        Work::SyncMany,
        "Sync of 1,000 files of 10 kB",
        "A cell writes them; the time of the answer beyond the cell's own. Against 1,000 `PutObject` of the same bytes to the same store, 16 at a time.",
    ),
    (
        Work::SyncLarge,
        "Sync of one 500 MB file",
        "The same, as a rate; against a multipart upload to the same store, parts of 8 MiB, 4 at a time. Higher is better.",
    ),
    (
        Work::RestartServes,
        "Restart with 50 live sandboxes: until it serves",
        "From the start of the process until it listens.",
    ),
    (
        Work::RestartAnswers,
        "Restart with 50 live sandboxes: until all have answered",
        "From the start of the process until each has answered with its variable.",
    ),
    (
        Work::AdoptServes,
        "200 sandboxes to adopt: until it serves",
        "As above.",
    ),
    (
        Work::AdoptAnswers,
        "200 sandboxes to adopt: until all have answered",
        "As above.",
    ),
    (
        Work::Beside(Noise::Nobody),
        "A quiet session, no neighbours",
        "A warm execute every few milliseconds, in turns with a cell of the raw REPL. The tables below: the same while other sandboxes are as loud as they can.",
    ),
    (
        Work::Beside(Noise::Forks),
        "A quiet session beside a fork bomb",
        "As above.",
    ),
    (
        Work::Beside(Noise::Memory),
        "A quiet session beside one that runs out of memory again and again",
        "As above.",
    ),
    (
        Work::Beside(Noise::Output),
        "A quiet session beside a flood of output",
        "As above.",
    ),
    (
        Work::Beside(Noise::Disk),
        "A quiet session beside one that fills its disk again and again",
        "As above.",
    ),
    (
        Work::Beside(Noise::All),
        "A quiet session beside all four",
        "As above.",
    ),
    (
        Work::BesideOnCore(Noise::All),
        "A quiet session beside all four, less its waits for a core",
        "From the same executes: without the time that the caller's thread, the sandbox's worker, the service's thread and the system's own that delivers packets (`ksoftirqd`) were ready to run and had no core (`/proc/*/schedstat`; of the caller's and the sandbox's threads the one that waited longest counts, of the others two: so many a request passes through).",
    ),
];

pub fn seconds(value: f64) -> String {
    match value {
        value if value < 0.9995e-3 => format!("{:.0} µs", value * 1e6),
        value if value < 0.9995 => format!("{:.2} ms", value * 1e3),
        value => format!("{value:.2} s"),
    }
}

pub fn bytes(value: f64) -> String {
    match value {
        value if value < 999.5e3 => format!("{:.0} kB", value / 1e3),
        value => format!("{:.1} MB", value / 1e6),
    }
}

pub fn ratio(value: f64) -> String {
    match value {
        value if value >= 99.5 => format!("{value:.0}×"),
        value if value >= 0.995 => format!("{value:.1}×"),
        value => format!("{value:.2}×"),
    }
}

fn shown(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Seconds => seconds(value),
        Unit::PerSecond => format!("{value:.0}/s"),
        Unit::Bytes => bytes(value),
        Unit::BytesPerSecond => format!("{}/s", bytes(value)),
    }
}

/// All tables, each with the ratio to Cellblock's embedded backend (or its docker one, where only that took part).
pub fn tables(results: &Results) -> String {
    let mut text = String::new();
    for (work, heading, how) in TABLES {
        let mut figures = results.figures.iter().filter(|figure| figure.work == *work);
        let figures: Vec<&Figure> = figures.by_ref().collect();
        if figures.is_empty() {
            continue;
        }
        let own = [Contender::Embedded, Contender::Docker];
        let own = own.iter().find_map(|own| results.p50(*work, *own));
        text += &format!("### {heading}\n\n{how}\n\n");
        text += "| | p50 | p99 | samples | to Cellblock |\n|---|---|---|---|---|\n";
        for figure in figures {
            let p99 = figure
                .p99
                .map_or("–".to_owned(), |p99| shown(figure.unit, p99));
            let to_own = own.map_or("–".to_owned(), |own| ratio(figure.p50 / own));
            text += &format!(
                "| {} | {} | {p99} | {} | {to_own} |\n",
                figure.contender.name(),
                shown(figure.unit, figure.p50),
                figure.count
            );
        }
        text.push('\n');
    }
    text
}

/// The document with `report` between the markers; None if it does not have both, in order.
pub fn replaced(document: &str, report: &str) -> Option<String> {
    let (before, rest) = document.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!(
        "{before}{BEGIN}\n\n{}\n\n{END}{after}",
        report.trim()
    ))
}
