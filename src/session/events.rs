//! What a caller may see of an execution before its answer, and how the execution learns that nobody looks any more.
//! Never holds an execution up. Invariant: events are bounded by the limits of output, so the channel needs none.

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::kernel::StreamName;
use crate::model::execution::ExecutionEvent;

/// Where an execution's events go, and how it learns that nobody listens any more.
#[derive(Clone, Default)]
pub struct EventSink {
    events: Option<mpsc::UnboundedSender<ExecutionEvent>>,
    hang_up: CancellationToken,
}

impl EventSink {
    /// Events are bounded by the output limits, so the channel needs no bound of its own.
    pub fn new(
        events: Option<mpsc::UnboundedSender<ExecutionEvent>>,
        hang_up: CancellationToken,
    ) -> Self {
        Self { events, hang_up }
    }

    pub fn send(&self, event: ExecutionEvent) {
        self.send_with(|| event);
    }

    pub fn send_with(&self, event: impl FnOnce() -> ExecutionEvent) {
        if let Some(events) = &self.events {
            let _nobody_listens = events.send(event());
        }
    }

    pub fn send_stream(&self, stream: StreamName, text: &str) {
        self.send_with(|| match stream {
            StreamName::Stdout => ExecutionEvent::Stdout(text.to_owned()),
            StreamName::Stderr => ExecutionEvent::Stderr(text.to_owned()),
        });
    }

    pub fn is_hung_up(&self) -> bool {
        self.hang_up.is_cancelled()
    }

    pub async fn hung_up(&self) {
        self.hang_up.cancelled().await;
    }
}
