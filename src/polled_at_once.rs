//! A future that is polled again at once when it was woken while it was being polled.
//! hyper wakes its own task twice for every request with a body; through the scheduler each of those wake-ups costs a turn in
//! its queue and a system call that wakes another thread. Never loses a wake-up: one that comes later goes to the task.
//! Invariant: it yields to the scheduler after `MAX_ROUNDS` rounds, whatever the future does.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

const MAX_ROUNDS: usize = 8;

const IDLE: u8 = 0;
const POLLED: u8 = 1;
const WOKEN_MEANWHILE: u8 = 2;

pub struct PolledAtOnce<F> {
    work: Pin<Box<F>>,
    shared: Arc<Shared>,
    waker: Waker,
}

struct Shared {
    state: AtomicU8,
    task: AtomicWaker,
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let noted = self.state.compare_exchange(
            POLLED,
            WOKEN_MEANWHILE,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if noted == Err(IDLE) {
            self.task.wake();
        }
    }
}

impl<F: Future> PolledAtOnce<F> {
    pub fn new(work: F) -> Self {
        let shared = Arc::new(Shared {
            state: AtomicU8::new(IDLE),
            task: AtomicWaker::new(),
        });
        Self {
            work: Box::pin(work),
            waker: Waker::from(shared.clone()),
            shared,
        }
    }
}

impl<F: Future> Future for PolledAtOnce<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        this.shared.task.register(context.waker());
        let mut own_context = Context::from_waker(&this.waker);
        for _ in 0..MAX_ROUNDS {
            this.shared.state.store(POLLED, Ordering::Release);
            if let Poll::Ready(output) = this.work.as_mut().poll(&mut own_context) {
                return Poll::Ready(output);
            }
            if this.shared.state.swap(IDLE, Ordering::AcqRel) == POLLED {
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;
    use tokio::sync::oneshot;

    /// Counts how often a task is woken.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn waking_itself(times: usize) -> impl Future<Output = ()> {
        let mut left = times;
        poll_fn(move |context| {
            if left == 0 {
                return Poll::Ready(());
            }
            left -= 1;
            context.waker().wake_by_ref();
            Poll::Pending
        })
    }

    #[test]
    fn a_future_that_wakes_itself_does_not_bother_the_scheduler() {
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let mut work = PolledAtOnce::new(waking_itself(3));
        let polled = Pin::new(&mut work).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_ready());
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_future_that_never_stops_waking_itself_yields_and_is_woken() {
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let mut work = PolledAtOnce::new(waking_itself(usize::MAX));
        let polled = Pin::new(&mut work).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_wake_up_of_another_thread_is_lost() {
        for _ in 0..2000 {
            let (sender, receiver) = oneshot::channel();
            let waiting = tokio::spawn(PolledAtOnce::new(receiver));
            std::thread::yield_now();
            tokio::task::spawn_blocking(move || sender.send(7));
            let received = tokio::time::timeout(Duration::from_secs(10), waiting).await;
            assert_eq!(received.unwrap().unwrap(), Ok(7));
        }
    }
}
