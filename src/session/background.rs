//! Programs that a caller starts, polls and waits for: their output in numbered pieces, their end.
//! Never keeps more of a program's output than a ring holds, however long it runs.
//! Invariant: numbers only grow; what a reader has not seen in time is gone, and the gap in the numbers says so.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::Core;
use super::error::CoreError;
use super::events::EventSink;
use super::output::Output;
use crate::kernel::StreamName;
use crate::model::ids::SessionIds;
use crate::model::process::{ProcessAnswer, ProcessCommand};

/// What a reader may be behind by.
const RING_BYTES: usize = 1 << 20;
/// Pieces of one byte cost more than a byte.
const RING_PIECES: usize = 4096;
/// Ended programs that can still be asked about, per session: those whose answer the caller has had already …
const ANSWERED_KEPT: usize = 16;
/// … and those in the background, whose exit code may be asked for later than their output is kept.
const BACKGROUND_KEPT: usize = 256;
const OUTPUTS_KEPT: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    pub seq: u64,
    pub stream: StreamName,
    pub text: String,
}

/// What a read of a program's output gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecReading {
    pub pieces: Vec<Piece>,
    /// It has ended and there is nothing after these pieces.
    pub done: bool,
}

/// How a program stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecStatus {
    pub exec_id: String,
    /// None while it runs.
    pub ended: Option<ProcessAnswer>,
}

/// The programs of one session.
#[derive(Default)]
pub struct Execs {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    by_id: HashMap<String, Arc<Exec>>,
    answered: VecDeque<Arc<Exec>>,
    in_background: VecDeque<Arc<Exec>>,
}

struct Exec {
    id: String,
    in_background: bool,
    captured: Mutex<Captured>,
    ended: watch::Sender<Option<ProcessAnswer>>,
}

struct Captured {
    /// The beginning, for whoever waits to the end.
    head: Output,
    ring: VecDeque<Piece>,
    ring_bytes: usize,
    next_seq: u64,
}

impl Execs {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, exec: &Arc<Exec>) {
        self.table().by_id.insert(exec.id.clone(), exec.clone());
    }

    fn find(&self, exec_id: &str) -> Option<Arc<Exec>> {
        self.table().by_id.get(exec_id).cloned()
    }

    /// Their sandbox is gone.
    pub fn forget_all(&self) {
        *self.table() = Table::default();
    }

    fn note_end(&self, exec: &Arc<Exec>) {
        let mut table = self.table();
        let Table {
            by_id,
            answered,
            in_background,
        } = &mut *table;
        let (ended, kept) = match exec.in_background {
            true => (in_background, BACKGROUND_KEPT),
            false => (answered, ANSWERED_KEPT),
        };
        ended.push_back(exec.clone());
        if let Some(quiet) = ended.len().checked_sub(OUTPUTS_KEPT + 1) {
            ended[quiet].forget_output();
        }
        if ended.len() > kept
            && let Some(oldest) = ended.pop_front()
        {
            by_id.remove(&oldest.id);
        }
    }
}

impl Exec {
    fn captured(&self) -> MutexGuard<'_, Captured> {
        self.captured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, stream: StreamName, text: &str) {
        let mut captured = self.captured();
        captured.head.push_stream(stream, text);
        let seq = captured.next_seq;
        captured.next_seq += 1;
        captured.ring_bytes += text.len();
        captured.ring.push_back(Piece {
            seq,
            stream,
            text: text.to_owned(),
        });
        while captured.ring_bytes > RING_BYTES || captured.ring.len() > RING_PIECES {
            let Some(oldest) = captured.ring.pop_front() else {
                break;
            };
            captured.ring_bytes -= oldest.text.len();
        }
    }

    fn forget_output(&self) {
        let mut captured = self.captured();
        captured.ring = VecDeque::new();
        captured.ring_bytes = 0;
        self.ended.send_modify(|ended| {
            if let Some(answer) = ended {
                (answer.stdout, answer.stderr) = (String::new(), String::new());
            }
        });
    }

    fn read(&self, since_seq: u64, max_pieces: usize) -> ExecReading {
        let ended = self.ended.borrow().is_some();
        let captured = self.captured();
        let unseen = || captured.ring.iter().filter(|piece| piece.seq >= since_seq);
        let pieces: Vec<Piece> = unseen().take(max_pieces).cloned().collect();
        ExecReading {
            done: ended && unseen().count() == pieces.len(),
            pieces,
        }
    }

    async fn wait(&self, limit: Duration) -> ExecStatus {
        let mut ended = self.ended.subscribe();
        let answer = tokio::time::timeout(limit, ended.wait_for(Option::is_some)).await;
        ExecStatus {
            exec_id: self.id.clone(),
            ended: answer.ok().and_then(Result::ok).and_then(|end| end.clone()),
        }
    }
}

impl Core {
    /// Starts a program that goes on by itself, until its end, its time limit or `hang_up`; without one nobody waits for it.
    pub async fn start_process(
        self: &Arc<Self>,
        ids: &SessionIds,
        command: ProcessCommand,
        hang_up: Option<CancellationToken>,
    ) -> Result<String, CoreError> {
        let exec = Arc::new(Exec {
            id: format!("exec_{}", uuid::Uuid::new_v4().simple()),
            in_background: hang_up.is_none(),
            captured: Mutex::new(Captured {
                head: Output::new(self.parts.files.max_output_bytes),
                ring: VecDeque::new(),
                ring_bytes: 0,
                next_seq: 1,
            }),
            ended: watch::Sender::new(None),
        });
        let limit = command.timeout;
        let started = self.start_program(ids, command).await?;
        let session = started.session().clone();
        session.execs.add(&exec);
        let (core, runs, for_end) = (self.clone(), exec.clone(), session.clone());
        let runs_to_its_end = async move {
            let events = EventSink::new(None, hang_up.unwrap_or_default());
            let (end, duration) = core
                .follow(started, limit, &events, &mut |stream, text| {
                    runs.push(stream, text)
                })
                .await;
            let answer = {
                let mut captured = runs.captured();
                captured.head.all = String::new();
                ProcessAnswer {
                    end,
                    stdout: std::mem::take(&mut captured.head.stdout),
                    stderr: std::mem::take(&mut captured.head.stderr),
                    truncated: captured.head.truncated,
                    duration,
                }
            };
            runs.ended.send_replace(Some(answer));
            for_end.execs.note_end(&runs);
        };
        tokio::spawn(runs_to_its_end.in_current_span());
        Ok(exec.id.clone())
    }

    /// Pieces of output from `since_seq` on.
    pub async fn read_process(
        &self,
        ids: &SessionIds,
        exec_id: &str,
        since_seq: u64,
        max_pieces: usize,
    ) -> Result<ExecReading, CoreError> {
        Ok(self.exec(ids, exec_id).await?.read(since_seq, max_pieces))
    }

    /// How a program stands, after at most `limit`.
    pub async fn wait_process(
        &self,
        ids: &SessionIds,
        exec_id: &str,
        limit: Duration,
    ) -> Result<ExecStatus, CoreError> {
        Ok(self.exec(ids, exec_id).await?.wait(limit).await)
    }

    async fn exec(&self, ids: &SessionIds, exec_id: &str) -> Result<Arc<Exec>, CoreError> {
        let session = self.open_session(ids).await?;
        let exec = session.execs.find(exec_id);
        exec.ok_or_else(|| CoreError::NotFound(format!("no exec {exec_id:?} in this sandbox")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exec() -> Exec {
        Exec {
            id: "exec_1".to_owned(),
            in_background: true,
            captured: Mutex::new(Captured {
                head: Output::new(100),
                ring: VecDeque::new(),
                ring_bytes: 0,
                next_seq: 1,
            }),
            ended: watch::Sender::new(None),
        }
    }

    #[test]
    fn a_reader_that_keeps_up_sees_every_piece_once_and_the_end_after_the_last() {
        let exec = exec();
        for n in 0..5 {
            exec.push(StreamName::Stdout, &n.to_string());
        }
        let first = exec.read(0, 3);
        assert_eq!(
            first
                .pieces
                .iter()
                .map(|piece| piece.seq)
                .collect::<Vec<_>>(),
            [1, 2, 3]
        );
        assert!(!first.done);
        exec.ended.send_replace(Some(ProcessAnswer::not_started(
            String::new(),
            Duration::ZERO,
        )));
        assert!(!exec.read(0, 3).done, "there is more");
        let rest = exec.read(4, 10);
        assert_eq!((rest.pieces.len(), rest.done), (2, true));
        assert_eq!(
            exec.read(6, 10),
            ExecReading {
                pieces: vec![],
                done: true
            }
        );
    }

    #[test]
    fn a_flood_pushes_old_pieces_out_and_memory_stays_bounded() {
        let exec = exec();
        let text = "x".repeat(100_000);
        for _ in 0..1000 {
            exec.push(StreamName::Stderr, &text);
        }
        let reading = exec.read(0, usize::MAX);
        let bytes: usize = reading.pieces.iter().map(|piece| piece.text.len()).sum();
        assert!(bytes <= RING_BYTES && reading.pieces.last().unwrap().seq == 1000);
        for _ in 0..10_000 {
            exec.push(StreamName::Stdout, "y");
        }
        assert!(exec.captured().ring.len() <= RING_PIECES);
    }

    #[test]
    fn the_end_of_a_program_in_the_background_outlives_many_that_were_waited_for() {
        let execs = Execs::default();
        let ended = |number: usize, in_background| {
            let exec = Arc::new(Exec {
                id: format!("exec_{number}"),
                in_background,
                ..exec()
            });
            exec.push(StreamName::Stdout, "x");
            exec.ended.send_replace(Some(ProcessAnswer::not_started(
                String::new(),
                Duration::ZERO,
            )));
            execs.add(&exec);
            execs.note_end(&exec);
        };
        ended(0, true);
        (1..100).for_each(|number| ended(number, false));
        assert_eq!(execs.find("exec_0").unwrap().read(0, 9).pieces.len(), 1);
        assert!(execs.find("exec_1").is_none() && execs.find("exec_99").is_some());
        (100..150).for_each(|number| ended(number, true));
        let first = execs.find("exec_0").unwrap();
        assert!(first.ended.borrow().is_some() && first.read(0, 9).done);
        (150..500).for_each(|number| ended(number, true));
        assert!(execs.find("exec_0").is_none());
        assert_eq!(execs.table().by_id.len(), ANSWERED_KEPT + BACKGROUND_KEPT);
    }
}
