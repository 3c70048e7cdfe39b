//! A future that its owner may drop and that goes on all the same.
//! Costs nothing while the owner waits: it is polled in place, with no task of its own and no hop between threads.
//! Invariant: once polled, the work is finished, here or in a task that takes over.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument;

/// As a layer: handles a request to its end.
pub async fn finish_anyway(request: Request, next: Next) -> Response {
    FinishAnyway::new(next.run(request)).await
}

pub struct FinishAnyway<T: Send + 'static> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
}

impl<T: Send + 'static> FinishAnyway<T> {
    pub fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self {
            work: Some(Box::pin(work)),
        }
    }
}

impl<T: Send + 'static> Future for FinishAnyway<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(work) = &mut self.work else {
            return Poll::Pending;
        };
        let done = work.as_mut().poll(context);
        if done.is_ready() {
            self.work = None;
        }
        done
    }
}

impl<T: Send + 'static> Drop for FinishAnyway<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            tokio::spawn(async move { drop(work.await) }.in_current_span());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn work_that_was_dropped_half_way_is_finished() {
        let (go, wait) = oneshot::channel::<()>();
        let (done, finished) = oneshot::channel();
        let work = FinishAnyway::new(async move {
            wait.await.unwrap();
            done.send(()).unwrap();
        });
        assert!(
            tokio::time::timeout(Duration::from_millis(10), work)
                .await
                .is_err()
        );
        go.send(()).unwrap();
        finished.await.unwrap();
    }
}
