//! Waiting for a future in a thread of Python's: without the interpreter lock, with a time limit, and so that Ctrl-C works.
//! Never moves the work to another thread: it is polled where it is waited for, which saves two wake-ups per call.
//! Invariant: a future that was given up is dropped inside the runtime, where its own clean-up can go on.

use std::future::Future;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyConnectionError, PyTimeoutError};
use pyo3::prelude::*;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// How often Python may look whether a signal has come.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The runtime of a core, as those see it who have work for it.
pub struct Surroundings {
    pub runtime: Handle,
    pub stopping: CancellationToken,
    /// Read by threads that poll on the runtime, which must not end under them.
    pub in_use: RwLock<()>,
    pid: u32,
}

enum Step<T> {
    Done(T),
    Stopped,
    Look,
}

impl Surroundings {
    pub fn new(runtime: Handle) -> Self {
        Self {
            runtime,
            stopping: CancellationToken::new(),
            in_use: RwLock::new(()),
            pid: std::process::id(),
        }
    }

    /// False in the child of a fork, which has this memory but not the threads that belong to it.
    pub fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }

    pub fn check(&self) -> PyResult<()> {
        if self.stopping.is_cancelled() || !self.is_ours() {
            return Err(stopped());
        }
        Ok(())
    }

    pub fn wait<T: Send>(
        &self,
        py: Python<'_>,
        timeout_secs: Option<f64>,
        work: impl Future<Output = T> + Send,
    ) -> PyResult<T> {
        self.check()?;
        let started = Instant::now();
        py.detach(|| {
            let _runtime_stays = self.in_use.read().unwrap_or_else(PoisonError::into_inner);
            let _inside = self.runtime.enter();
            let mut work = Box::pin(work);
            loop {
                let step = self.runtime.block_on(async {
                    tokio::select! {
                        biased;
                        () = self.stopping.cancelled() => Step::Stopped,
                        done = &mut work => Step::Done(done),
                        () = tokio::time::sleep(LOOK_INTERVAL) => Step::Look,
                    }
                });
                match step {
                    Step::Done(done) => return Ok(done),
                    Step::Stopped => return Err(stopped()),
                    Step::Look => Python::attach(|py| py.check_signals())?,
                }
                if timeout_secs.is_some_and(|limit| started.elapsed().as_secs_f64() > limit) {
                    return Err(PyTimeoutError::new_err("no answer within the time limit"));
                }
            }
        })
    }
}

fn stopped() -> PyErr {
    PyConnectionError::new_err("the core of this process has been stopped")
}
