//! Judges command lines in a process of its own: the parser is not ours and the lines are hostile. One that leads it too deep, or
//! round in circles, costs that process and is refused; the service does not notice.
//! Invariant: a line that gets no verdict within `PATIENCE` is refused.

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError, mpsc};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, setrlimit};
use serde::{Deserialize, Serialize};

use super::{CommandPolicy, Refused, Verdict};

/// The hidden subcommand that makes the binary such a process.
pub const SUBCOMMAND: &str = "judge-commands";
/// A verdict takes well under a millisecond.
const PATIENCE: Duration = Duration::from_secs(1);
/// Lines that are judged at once; further ones wait.
const HELPERS: usize = 4;
const HELPER_MEMORY_BYTES: u64 = 1 << 30;

/// A policy and the processes that judge by it. They are started when they are needed, and end with this.
pub struct Judge {
    policy: CommandPolicy,
    program: PathBuf,
    helpers: [Mutex<Option<Helper>>; HELPERS],
}

#[derive(Serialize, Deserialize)]
struct Question {
    policy: CommandPolicy,
    line: String,
}

impl Judge {
    /// `program` is the cellblock binary.
    pub fn new(policy: CommandPolicy, program: PathBuf) -> Self {
        Self {
            policy,
            program,
            helpers: Default::default(),
        }
    }

    /// Blocks until there is a verdict.
    pub fn check(&self, line: &str) -> Verdict {
        let question = Question {
            policy: self.policy.clone(),
            line: line.to_owned(),
        };
        let mut place = self.free_place();
        // One that has waited may have been ended by somebody meanwhile; then a new one is asked.
        if let Some(verdict) = place.as_mut().and_then(|helper| helper.ask(&question).ok()) {
            return verdict;
        }
        *place = None;
        let mut helper = Helper::start(&self.program).map_err(|error| {
            Refused::because(format!("the command could not be looked at: {error}"))
        })?;
        let verdict = helper.ask(&question).map_err(|_| {
            Refused::because("the command is too tangled to be understood; write it more simply")
        })?;
        *place = Some(helper);
        verdict
    }

    /// The first that nobody uses, so that one process serves a service that is not busy.
    fn free_place(&self) -> MutexGuard<'_, Option<Helper>> {
        for place in &self.helpers {
            match place.try_lock() {
                Ok(free) => return free,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        let last = &self.helpers[HELPERS - 1];
        last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Helper {
    child: Child,
    questions: ChildStdin,
    verdicts: BufReader<ChildStdout>,
}

impl Helper {
    fn start(program: &Path) -> io::Result<Self> {
        let mut child = Command::new(program)
            .arg(SUBCOMMAND)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (questions, verdicts) = pipes.expect("both were asked for");
        Ok(Self {
            child,
            questions,
            verdicts: BufReader::new(verdicts),
        })
    }

    /// The outer error: the process ended without a verdict, as it does by itself after `PATIENCE`.
    fn ask(&mut self, question: &Question) -> io::Result<Verdict> {
        let mut text = serde_json::to_string(question)?;
        text.push('\n');
        self.questions.write_all(text.as_bytes())?;
        let mut answer = String::new();
        self.verdicts.read_line(&mut answer)?;
        Ok(serde_json::from_str(&answer)?)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _already_gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// The process: a question a line, a verdict a line, until nobody asks any more. False if it gave up.
pub fn run_helper() -> bool {
    for (resource, most) in [(Resource::As, HELPER_MEMORY_BYTES), (Resource::Core, 0)] {
        let limit = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        if setrlimit(resource, limit).is_err() {
            return false;
        }
    }
    let mut output = io::stdout();
    for line in io::stdin().lines() {
        let Some(verdict) = line.ok().and_then(|line| judged_in_time(&line)) else {
            return false;
        };
        let written = serde_json::to_string(&verdict)
            .map_err(io::Error::from)
            .and_then(|text| writeln!(output, "{text}"))
            .and_then(|()| output.flush());
        if written.is_err() {
            return false;
        }
    }
    true
}

/// None if it takes too long; what thinks about it still does then, and ends with the process.
fn judged_in_time(question: &str) -> Option<Verdict> {
    let Question { policy, line } = serde_json::from_str(question).ok()?;
    let (sender, verdict) = mpsc::channel();
    std::thread::spawn(move || sender.send(policy.check(&line)));
    verdict.recv_timeout(PATIENCE).ok()
}
