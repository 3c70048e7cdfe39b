//! The body of one accepted response, chunk by chunk, under a cap, a deadline and a minimum rate.
//! It never decompresses, buffers or writes anything.
//! Invariant: the end of the stream (`None`) is only ever reported for a body that arrived whole.

use std::time::Duration;

use bytes::Bytes;
use reqwest::Response;
use tokio::time::{Instant, timeout};

use super::error::IngestError;
use super::fetch::FetchPolicy;

#[derive(Debug)]
pub struct Download {
    /// Sanitised: one safe path segment. See `filename`.
    pub suggested_name: String,
    pub content_length: Option<u64>,
    response: Response,
    policy: FetchPolicy,
    deadline: Instant,
    received_bytes: u64,
    window: RateWindow,
    ended: Option<Result<(), IngestError>>,
}

/// Bytes that came in during the time spent waiting for the server. Time that the caller spends between two chunks
/// does not count, so a slow sink is not taken for a slow server.
#[derive(Debug, Default)]
struct RateWindow {
    waited: Duration,
    bytes: u64,
}

impl Download {
    pub(super) fn start(
        response: Response,
        suggested_name: String,
        policy: FetchPolicy,
        deadline: Instant,
    ) -> Result<Self, IngestError> {
        let content_length = response.content_length();
        if content_length.is_some_and(|announced| announced > policy.max_bytes) {
            return Err(IngestError::TooLarge {
                limit_bytes: policy.max_bytes,
            });
        }
        Ok(Self {
            suggested_name,
            content_length,
            response,
            policy,
            deadline,
            received_bytes: 0,
            window: RateWindow::default(),
            ended: None,
        })
    }

    /// The next piece of the body, or `None` after the last. An error repeats for as long as it is asked for.
    pub async fn next_chunk(&mut self) -> Result<Option<Bytes>, IngestError> {
        if let Some(ended) = &self.ended {
            return ended.clone().map(|()| None);
        }
        let outcome = self.read_chunk().await;
        self.ended = match &outcome {
            Ok(Some(_)) => None,
            Ok(None) => Some(Ok(())),
            Err(error) => Some(Err(error.clone())),
        };
        outcome
    }

    pub fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    async fn read_chunk(&mut self) -> Result<Option<Bytes>, IngestError> {
        loop {
            let started = Instant::now();
            let until_deadline = self.deadline.saturating_duration_since(started);
            if until_deadline.is_zero() {
                return Err(self.policy.timed_out());
            }
            let until_window_end = self.policy.rate_window.saturating_sub(self.window.waited);
            // A cancelled `chunk` loses nothing: it only polls the body that the response keeps.
            let outcome =
                timeout(until_deadline.min(until_window_end), self.response.chunk()).await;
            self.window.waited += started.elapsed();
            let chunk = match outcome {
                Ok(Ok(chunk)) => chunk,
                Ok(Err(_)) => return Err(self.truncated()),
                Err(_) => {
                    self.check_rate()?;
                    continue;
                }
            };
            let Some(bytes) = chunk else {
                return self.finish();
            };
            self.count(bytes.len() as u64)?;
            if !bytes.is_empty() {
                return Ok(Some(bytes));
            }
        }
    }

    fn count(&mut self, chunk_bytes: u64) -> Result<(), IngestError> {
        self.received_bytes = self.received_bytes.saturating_add(chunk_bytes);
        if self.received_bytes > self.policy.max_bytes {
            return Err(IngestError::TooLarge {
                limit_bytes: self.policy.max_bytes,
            });
        }
        self.window.bytes = self.window.bytes.saturating_add(chunk_bytes);
        self.check_rate()
    }

    fn check_rate(&mut self) -> Result<(), IngestError> {
        if self.window.waited < self.policy.rate_window {
            return Ok(());
        }
        let window = std::mem::take(&mut self.window);
        let min_rate_bytes_per_sec = self.policy.min_rate_bytes_per_sec;
        let wanted_bytes = min_rate_bytes_per_sec as f64 * window.waited.as_secs_f64();
        if (window.bytes as f64) < wanted_bytes {
            return Err(IngestError::TooSlow {
                min_rate_bytes_per_sec,
            });
        }
        Ok(())
    }

    fn finish(&self) -> Result<Option<Bytes>, IngestError> {
        match self.content_length {
            Some(announced) if announced != self.received_bytes => Err(self.truncated()),
            _ => Ok(None),
        }
    }

    fn truncated(&self) -> IngestError {
        IngestError::Truncated {
            received_bytes: self.received_bytes,
        }
    }
}
