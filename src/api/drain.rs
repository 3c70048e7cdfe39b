//! The patience with a request's body: while it comes, and when its handler has answered before its end.
//! Never holds an answer back. Invariant: a client that still sends gets to read the answer, within a bound.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use tokio::time::Sleep;

const MAX_DRAINED_BYTES: usize = 256 << 20;
/// A client that sends nothing for so long has lost its connection, or wants to hold one of ours.
const MAX_SILENCE: Duration = Duration::from_secs(20);
const MAX_DRAIN_TIME: Duration = Duration::from_secs(10);

/// Closing a connection with unread bytes on it makes the client's kernel throw our answer away (TCP reset), so
/// bytes that nobody wants are read and forgotten for a while.
pub async fn drain_unread_body(request: Request, next: Next) -> Response {
    next.run(request.map(|body| {
        Body::new(Drained {
            body: Some(body),
            silence: None,
        })
    }))
    .await
}

#[derive(Debug, thiserror::Error)]
#[error("the body stopped coming")]
struct TooSilent;

struct Drained {
    body: Option<Body>,
    /// Runs while the client is silent.
    silence: Option<Pin<Box<Sleep>>>,
}

impl HttpBody for Drained {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let Some(body) = &mut this.body else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(body).poll_frame(context);
        if polled.is_ready() {
            this.silence = None;
            return polled;
        }
        let silence = this
            .silence
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(MAX_SILENCE)));
        match silence.as_mut().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                this.body = None;
                Poll::Ready(Some(Err(axum::Error::new(TooSilent))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map(HttpBody::size_hint)
            .unwrap_or_default()
    }
}

impl Drop for Drained {
    fn drop(&mut self) {
        let Some(mut body) = self.body.take().filter(|body| !body.is_end_stream()) else {
            return;
        };
        tokio::spawn(tokio::time::timeout(MAX_DRAIN_TIME, async move {
            let mut drained = 0;
            while let Some(Ok(frame)) = body.frame().await {
                drained += frame.data_ref().map_or(0, Bytes::len);
                if drained > MAX_DRAINED_BYTES {
                    break;
                }
            }
        }));
    }
}
