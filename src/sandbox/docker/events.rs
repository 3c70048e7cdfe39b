//! The engine's event stream, reduced to what matters: a container of ours ended, was paused or was removed, or ran out of memory.
//! Never decides what that means. Invariant: after every gap in the stream one `Ended::Any` says that news may be missing, and
//! the new stream begins where the old one ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bollard::Docker;
use bollard::query_parameters::EventsOptionsBuilder;
use futures_util::StreamExt;
use tokio::sync::mpsc;

use super::labels::Deployment;
use crate::sandbox::Ended;

const RETRY: Duration = Duration::from_secs(1);
const OUT_OF_MEMORY: &str = "oom";
const NEWS: [&str; 4] = ["die", "pause", "destroy", OUT_OF_MEMORY];

/// Follows the events for ever; ends when nobody listens any more.
pub async fn follow(
    docker: Docker,
    deployment: Deployment,
    news: mpsc::Sender<Ended>,
    oom_kills: Arc<Mutex<HashMap<String, u64>>>,
) {
    let mut filters = deployment.filters();
    filters.insert("type".to_owned(), vec!["container".to_owned()]);
    filters.insert("event".to_owned(), NEWS.map(str::to_owned).to_vec());
    let mut since = now_secs();
    loop {
        follow_once(&docker, &filters, since, &news, &oom_kills).await;
        since = now_secs();
        tokio::time::sleep(RETRY).await;
        if news.send(Ended::Any).await.is_err() {
            return;
        }
    }
}

async fn follow_once(
    docker: &Docker,
    filters: &HashMap<String, Vec<String>>,
    since: u64,
    news: &mpsc::Sender<Ended>,
    oom_kills: &Mutex<HashMap<String, u64>>,
) {
    let options = EventsOptionsBuilder::new()
        .filters(filters)
        .since(&since.to_string())
        .build();
    let mut events = std::pin::pin!(docker.events(Some(options)));
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => return tracing::debug!(%error, "the engine's event stream ended"),
        };
        let Some(container_id) = event.actor.and_then(|actor| actor.id) else {
            continue;
        };
        if event.action.as_deref() == Some(OUT_OF_MEMORY) {
            let mut kills = oom_kills.lock().unwrap_or_else(PoisonError::into_inner);
            *kills.entry(container_id).or_default() += 1;
        } else if news.send(Ended::One(container_id)).await.is_err() {
            return;
        }
    }
}

fn now_secs() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
