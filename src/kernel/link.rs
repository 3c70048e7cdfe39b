//! A sandbox's kernel as the core sees it: one control link, one cell link at a time.
//! Never interprets an execution's result; the session does. Drop it and every link ends.
//! Invariant: a cell link is in one pair of hands at a time, and a dead worker's link never comes back.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::frame::MAX_FRAME_BYTES;
use super::listener::KernelListener;
use super::message::{CellFrame, ControlReply, Hello, HostFrame, PROTOCOL_VERSION};
use super::socket::{PacketSocket, SocketError};

/// Control links and links that have not said hello. An init needs two, three while it replaces a worker, and one more for
/// each process that is just being started; more are a flood.
const MAX_UNCLAIMED: usize = 72;
const MAX_LOGGED_FAILURES: usize = 16;
const MAX_LOGGED_BYTES: usize = 300;
const INTERRUPT_TRIES: usize = 20;
const INTERRUPT_PAUSE: Duration = Duration::from_millis(25);
const CONTROL_TIMEOUT: Duration = Duration::from_secs(2);
/// A busy sandbox may take a while to fork, and to end a tree of processes.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error("the kernel is not connected")]
    NotConnected,
    #[error("the kernel did not answer in time")]
    NoAnswer,
    /// The sandbox's own words on why a program cannot be started.
    #[error("{0}")]
    NotStarted(String),
    #[error("what is to be sent to the sandbox is too long")]
    TooLong,
    #[error("the kernel broke the protocol: {0}")]
    Protocol(String),
    #[error(transparent)]
    Socket(#[from] SocketError),
}

pub struct Kernel {
    shared: Arc<Shared>,
    /// Ends the accept loop, and with it every task of this kernel, when dropped.
    _tasks: JoinSet<()>,
}

struct Shared {
    state: Mutex<State>,
    changed: Notify,
    next_request: AtomicU64,
}

#[derive(Default)]
struct State {
    control: Option<mpsc::UnboundedSender<ControlRequest>>,
    cell: Option<CellLink>,
    /// Who waits for the link of a process, by the process's number.
    processes: HashMap<u64, oneshot::Sender<PacketSocket>>,
}

struct ControlRequest {
    id: u64,
    frame: Vec<u8>,
    reply: oneshot::Sender<ControlReply>,
}

/// The link to one worker. Held by the execution that uses it, given back after a `done`.
pub struct CellLink {
    socket: PacketSocket,
    pub generation: u64,
    pub execution_count: u64,
}

/// The link of one process: its output, then its end. Dropped before that, the process is ended.
pub struct ProcessLink {
    socket: PacketSocket,
    process: u64,
}

/// What to start: a program with arguments, a folder below the workspace, variables on top of the sandbox's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    pub argv: Vec<String>,
    pub cwd: String,
    pub env: BTreeMap<String, String>,
}

impl Kernel {
    /// Starts to listen for the kernel of the sandbox whose init is `init_pid`.
    pub fn listen(control_dir: &Path, init_pid: oneshot::Receiver<i32>) -> io::Result<Self> {
        let listener = KernelListener::bind(control_dir)?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State::default()),
            changed: Notify::new(),
            next_request: AtomicU64::new(1),
        });
        let mut tasks = JoinSet::new();
        let for_task = shared.clone();
        tasks.spawn(async move {
            if let Ok(init_pid) = init_pid.await {
                accept_links(listener, init_pid, for_task).await;
            }
        });
        Ok(Self {
            shared,
            _tasks: tasks,
        })
    }

    pub fn is_connected(&self) -> bool {
        self.shared.has_control()
    }

    /// The kernel was connected and is not any more; one that lives dials again at once.
    pub fn has_hung_up(&self) -> bool {
        self.shared
            .lock()
            .control
            .as_ref()
            .is_some_and(|control| control.is_closed())
    }

    /// Waits until the kernel's control link is there; false if it is not within `wait`.
    pub async fn wait_connected(&self, wait: Duration) -> bool {
        let connected = async {
            loop {
                let changed = self.shared.changed.notified();
                if self.is_connected() {
                    return;
                }
                changed.await;
            }
        };
        timeout(wait, connected).await.is_ok()
    }

    /// The current worker's link, as soon as it is there and idle.
    pub async fn take_cell(&self, wait: Duration) -> Result<CellLink, KernelError> {
        let taken = timeout(wait, async {
            loop {
                let changed = self.shared.changed.notified();
                if let Some(cell) = self.shared.lock().cell.take() {
                    return cell;
                }
                changed.await;
            }
        });
        taken.await.map_err(|_| KernelError::NoAnswer)
    }

    pub fn give_back_cell(&self, cell: CellLink) {
        cell.socket.expect_silence();
        let mut state = self.shared.lock();
        // A newer worker's link may have arrived meanwhile; then this one is the past.
        if state
            .cell
            .as_ref()
            .is_none_or(|newer| newer.generation <= cell.generation)
        {
            state.cell = Some(cell);
        }
        drop(state);
        self.shared.changed.notify_waiters();
    }

    /// Whether the supervisor answers; it does so also while a cell runs.
    pub async fn answers(&self) -> bool {
        self.control(|id| HostFrame::Ping { id }).await.is_ok()
    }

    /// Whether the worker waits for a cell. False too while one is being started.
    pub fn worker_is_idle(&self) -> bool {
        self.shared.lock().cell.is_some()
    }

    /// Interrupts whatever runs, as far as anything does.
    pub async fn interrupt_whatever_runs(&self) -> Result<(), KernelError> {
        self.control(|id| HostFrame::Interrupt { id, execution: 0 })
            .await
            .map(drop)
    }

    /// Interrupts an execution that was sent. A worker that has not taken it up yet is asked again.
    pub async fn interrupt(&self, execution: u64) -> Result<(), KernelError> {
        for _ in 0..INTERRUPT_TRIES {
            let reply = self
                .control(|id| HostFrame::Interrupt { id, execution })
                .await?;
            if reply.running {
                break;
            }
            tokio::time::sleep(INTERRUPT_PAUSE).await;
        }
        Ok(())
    }

    /// Kills every process of the sandbox but its init, which starts a new worker.
    pub async fn restart(&self) -> Result<(), KernelError> {
        self.shared.lock().cell = None;
        self.control(|id| HostFrame::Restart { id }).await.map(drop)
    }

    /// Starts a process beside the worker.
    pub async fn spawn(&self, process: u64, program: &Program) -> Result<ProcessLink, KernelError> {
        let (sender, arrives) = oneshot::channel();
        self.shared.lock().processes.insert(process, sender);
        let Program { argv, cwd, env } = program;
        let frame = |id| HostFrame::Spawn {
            id,
            process,
            argv,
            cwd,
            env,
        };
        let started = async {
            let reply = self.control_within(PROCESS_TIMEOUT, frame).await?;
            if !reply.error.is_empty() {
                return Err(KernelError::NotStarted(reply.error));
            }
            let socket = timeout(CONTROL_TIMEOUT, arrives).await;
            socket
                .map_err(|_| KernelError::NoAnswer)?
                .map_err(|_| KernelError::NotConnected)
        };
        let socket = started.await.inspect_err(|_| {
            self.shared.lock().processes.remove(&process);
        })?;
        Ok(ProcessLink { socket, process })
    }

    /// Ends a process and everything it started.
    pub async fn kill(&self, process: u64) -> Result<(), KernelError> {
        self.control_within(PROCESS_TIMEOUT, |id| HostFrame::Kill { id, process })
            .await
            .map(drop)
    }

    async fn control(
        &self,
        frame: impl FnOnce(u64) -> HostFrame<'static>,
    ) -> Result<ControlReply, KernelError> {
        self.control_within(CONTROL_TIMEOUT, frame).await
    }

    async fn control_within<'f>(
        &self,
        limit: Duration,
        frame: impl FnOnce(u64) -> HostFrame<'f>,
    ) -> Result<ControlReply, KernelError> {
        let id = self.shared.next_request.fetch_add(1, Ordering::Relaxed);
        let frame = serde_json::to_vec(&frame(id))
            .map_err(|error| KernelError::Protocol(error.to_string()))?;
        if frame.len() > MAX_FRAME_BYTES {
            return Err(KernelError::TooLong);
        }
        let (reply, answered) = oneshot::channel();
        let control = self
            .shared
            .lock()
            .control
            .clone()
            .ok_or(KernelError::NotConnected)?;
        control
            .send(ControlRequest { id, frame, reply })
            .map_err(|_| KernelError::NotConnected)?;
        timeout(limit, answered)
            .await
            .map_err(|_| KernelError::NoAnswer)?
            .map_err(|_| KernelError::NotConnected)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_control(&self) -> bool {
        self.lock()
            .control
            .as_ref()
            .is_some_and(|control| !control.is_closed())
    }
}

/// As much of the kernel's words as a log needs.
fn beginning(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_LOGGED_BYTES)]
}

impl CellLink {
    /// Sends code. What an earlier execution may have left in the link has another id, and `next` passes over it.
    pub async fn execute(
        &mut self,
        id: u64,
        code: &str,
        max_output_bytes: usize,
    ) -> Result<(), KernelError> {
        let frame = serde_json::to_vec(&HostFrame::Execute {
            id,
            code,
            max_output_bytes,
        })
        .map_err(|error| KernelError::Protocol(error.to_string()))?;
        self.socket.begin_anew();
        Ok(self.socket.send_frame(&frame).await?)
    }

    /// The next frame of execution `id`, or of the worker's death.
    pub async fn next(&mut self, id: u64) -> Result<CellFrame, KernelError> {
        loop {
            let frame = self.socket.next_frame().await?;
            let frame: CellFrame = serde_json::from_slice(&frame)
                .map_err(|error| KernelError::Protocol(error.to_string()))?;
            if frame.execution() == Some(id) || matches!(frame, CellFrame::Died { .. }) {
                return Ok(frame);
            }
        }
    }
}

impl ProcessLink {
    /// The next output, or the end.
    pub async fn next(&mut self) -> Result<CellFrame, KernelError> {
        loop {
            let frame = self.socket.next_frame().await?;
            let frame: CellFrame = serde_json::from_slice(&frame)
                .map_err(|error| KernelError::Protocol(error.to_string()))?;
            if frame.execution() == Some(self.process) {
                return Ok(frame);
            }
        }
    }
}

async fn accept_links(listener: KernelListener, init_pid: i32, shared: Arc<Shared>) {
    let mut links = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(init_pid) => match accepted {
                Ok(connection) if links.len() < MAX_UNCLAIMED => {
                    links.spawn(serve_link(connection, shared.clone()));
                }
                Ok(_) => tracing::warn!(init_pid, "a sandbox dials too many kernel links"),
                Err(error) => {
                    tracing::warn!(init_pid, %error, "accepting a kernel link failed");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = links.join_next() => {}
        }
    }
}

/// Waits for the hello, then either hands the link over (cell) or serves it to its end (control).
async fn serve_link(connection: OwnedFd, shared: Arc<Shared>) {
    let outcome = async {
        let mut socket = PacketSocket::new(connection).map_err(SocketError::from)?;
        let hello = socket.next_frame().await?;
        match serde_json::from_slice(&hello)
            .map_err(|error| KernelError::Protocol(error.to_string()))?
        {
            Hello::Cell {
                generation,
                execution_count,
            } => {
                shared.lock().cell = Some(CellLink {
                    socket,
                    generation,
                    execution_count,
                });
                shared.changed.notify_waiters();
                Ok(())
            }
            Hello::Process { process } => {
                // One that nobody asked for ends here, and with it its link.
                if let Some(waits) = shared.lock().processes.remove(&process) {
                    let _gave_up = waits.send(socket);
                }
                Ok(())
            }
            // The init ends its control link before it dials another. Whoever says this now is the worker, on a link
            // that was given to it for cells.
            Hello::Control { .. } if shared.has_control() => Err(KernelError::Protocol(
                "there is a control link already".to_owned(),
            )),
            Hello::Control { protocol, .. } if protocol != PROTOCOL_VERSION => Err(
                KernelError::Protocol(format!("kernel speaks protocol {protocol}")),
            ),
            Hello::Control {
                python,
                preload_failed,
                ..
            } => {
                tracing::debug!(python = beginning(&python), "kernel connected");
                for failure in preload_failed.iter().take(MAX_LOGGED_FAILURES) {
                    let failure = beginning(failure);
                    tracing::warn!(failure, "a module of SANDBOX_PRELOAD could not be imported");
                }
                serve_control(socket, &shared).await
            }
        }
    };
    if let Err(error) = outcome.await {
        tracing::debug!(%error, "a kernel link ended");
    }
}

async fn serve_control(mut socket: PacketSocket, shared: &Shared) -> Result<(), KernelError> {
    let (sender, mut requests) = mpsc::unbounded_channel::<ControlRequest>();
    shared.lock().control = Some(sender);
    shared.changed.notify_waiters();
    let mut waiting: HashMap<u64, oneshot::Sender<ControlReply>> = HashMap::new();
    loop {
        tokio::select! {
            request = requests.recv() => {
                let Some(request) = request else { return Ok(()) };
                waiting.retain(|_, reply| !reply.is_closed());
                waiting.insert(request.id, request.reply);
                socket.send_frame(&request.frame).await?;
            }
            frame = socket.next_frame() => {
                let reply: Result<ControlReply, _> = serde_json::from_slice(&frame?);
                let reply = reply.map_err(|error| KernelError::Protocol(error.to_string()))?;
                if let Some(waiter) = waiting.remove(&reply.id) {
                    let _gone = waiter.send(reply);
                }
            }
        }
    }
}
