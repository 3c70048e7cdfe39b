//! Serving HTTP/1.1 on a listener: bounded connections, header time-out, graceful end. Both servers use it.
//! Never looks into a request. Invariant: after `shutdown` it returns within the drain limit.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::polled_at_once::PolledAtOnce;

const MAX_CONNECTIONS: usize = 1024;
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// A peer that takes no bytes for this long loses its connection, so that it cannot hold one for ever.
const UNREAD_LIMIT_MS: u32 = 60_000;

/// Serves until `shutdown` resolves, then lets requests under way finish for up to `drain`.
pub async fn serve<S, B>(
    listener: TcpListener,
    service: S,
    drain: Duration,
    shutdown: impl Future<Output = ()> + Send,
) where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: BodyExt + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        let accepted = async {
            let slot = Arc::clone(&slots).acquire_owned().await;
            (listener.accept().await, slot)
        };
        let (accepted, slot) = tokio::select! {
            accepted = accepted => accepted,
            () = &mut shutdown => break,
        };
        while connections.try_join_next().is_some() {}
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        prepare_socket(&stream);
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .keep_alive(true)
            .serve_connection(TokioIo::new(stream), service.clone());
        let connection = PolledAtOnce::new(graceful.watch(connection));
        connections.spawn(async move {
            let _slot = slot;
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(drain, graceful.shutdown())
        .await
        .is_err()
    {
        tracing::warn!("requests under way were cut off at shutdown");
    }
    connections.shutdown().await;
}

fn prepare_socket(stream: &TcpStream) {
    let prepared = stream.set_nodelay(true).and_then(|()| {
        rustix::net::sockopt::set_tcp_user_timeout(stream, UNREAD_LIMIT_MS)?;
        Ok(())
    });
    if let Err(error) = prepared {
        tracing::debug!(%error, "socket options could not be set");
    }
}
