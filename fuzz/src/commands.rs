//! The command policy: whatever a line is, a forbidden program on a line of its own beside it is seen.
//! Judged as the service does it, in a process that may die; what gets a verdict there is looked at here too, where it is counted.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use cellblock::policy::CommandPolicy;
use cellblock::policy::judge::Judge;

const ALLOWED: &str =
    "jq awk grep sed sort uniq head tail wc cut tr cat echo date find ls python3 python";
const FORBIDDEN: &str = "rm mv dd curl wget ssh sudo";
const PATIENCE: Duration = Duration::from_secs(5);

static POLICY: LazyLock<CommandPolicy> = LazyLock::new(|| {
    let words = |list: &str| list.split(' ').map(str::to_owned).collect::<Vec<_>>();
    CommandPolicy::new(words(ALLOWED), words(FORBIDDEN))
});

/// Its processes are the service's own binary, which `./ctl.sh fuzz` names.
static JUDGE: LazyLock<Judge> = LazyLock::new(|| {
    let binary = std::env::var_os("CELLBLOCK_BINARY").expect("CELLBLOCK_BINARY names the binary");
    Judge::new(POLICY.clone(), binary.into())
});

pub fn check(input: &[u8]) {
    let line = String::from_utf8_lossy(input).into_owned();
    let began = Instant::now();
    let verdict = JUDGE.check(&line);
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    assert!(JUDGE.check(&format!("rm x\n{line}")).is_err(), "{line:?}");
    let too_tangled = matches!(&verdict, Err(refused) if refused.reason.contains("tangled"));
    if !too_tangled {
        assert_eq!(POLICY.check(&line), verdict, "{line:?}");
    }
    // What was whole before is still whole, and what comes on a line of its own is seen.
    let goes_on = line.ends_with('\\') || line.contains("<<");
    if verdict.is_err() || goes_on {
        return;
    }
    for more in [
        "rm x",
        "$(rm x)",
        "echo `rm x`",
        "sudo ls",
        "/bin/rm x",
        "find . -exec rm {} ;",
    ] {
        let both = format!("{line}\n{more}");
        assert!(POLICY.check(&both).is_err(), "{line:?} {more}");
    }
}
