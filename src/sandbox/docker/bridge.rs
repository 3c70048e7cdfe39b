//! Kernel links over `docker exec`, for engines and runtimes to whose kernel no socket of ours can be mounted.
//! Never looks into a packet: `kernel/bridge.py` inside and this task outside pass them on, and the service's own
//! listener takes them as if the kernel had dialled. Invariant: when a bridge is dropped, its exec and all its links end.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bollard::Docker;
use bollard::exec::{CreateExecOptions, StartExecResults};
use bytes::{Buf, BytesMut};
use futures_util::StreamExt;
use rustix::fs::{Mode, OFlags};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

use super::engine::{QUICK, within};
use crate::kernel::{MAX_PACKET_BYTES, RawPackets};
use crate::sandbox::inside;

const OPEN: u8 = 0;
const DATA: u8 = 1;
const CLOSE: u8 = 2;
const HEADER_BYTES: usize = 9;
const LINKS_AT_MOST: usize = 80;
/// Packets of one link that wait for the service to take them.
const WAITING_AT_MOST: usize = 64;
const LINK_PATIENCE: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Shorter than a session waits for a sandbox that lives to dial again.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// A bridge that has lasted so long was not ended by its sandbox over and over.
const LASTED: Duration = Duration::from_secs(30);

/// The pid from which bridged links reach our own listener.
pub fn dialling_pid() -> i32 {
    std::process::id() as i32
}

pub struct Bridge {
    task: JoinHandle<()>,
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Bridge {
    pub fn start(docker: Docker, container_id: &str, control_dir: &Path) -> std::io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = Arc::new(rustix::fs::open(control_dir, flags, Mode::empty())?);
        let container_id = container_id.to_owned();
        let task = tokio::spawn(async move {
            let mut pause = FIRST_PAUSE;
            loop {
                let started = Instant::now();
                if let Err(error) = carry(&docker, &container_id, &folder).await {
                    tracing::debug!(container_id, %error, "a bridge to a sandbox ended");
                }
                // Code in the sandbox can end it again and again, and each exec is work for the engine.
                pause = match started.elapsed() > LASTED {
                    true => FIRST_PAUSE,
                    false => (pause * 2).min(LONGEST_PAUSE),
                };
                tokio::time::sleep(pause).await;
            }
        });
        Ok(Self { task })
    }
}

/// One exec, from its start to its end.
async fn carry(docker: &Docker, container_id: &str, folder: &Arc<OwnedFd>) -> anyhow::Result<()> {
    let script = format!("{}/bridge.py", inside::KERNEL);
    let options = CreateExecOptions {
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        cmd: Some(vec!["python3", "-I", "-S", &script]),
        ..CreateExecOptions::default()
    };
    let exec = within(QUICK, docker.create_exec(container_id, options)).await?;
    let started = within(QUICK, docker.start_exec(&exec.id, None)).await?;
    let StartExecResults::Attached { mut output, input } = started else {
        bail!("the exec was not attached");
    };
    let (to_sandbox, queue) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    tasks.spawn(write_all(input, queue));
    let mut links = HashMap::new();
    let mut buffer = BytesMut::new();
    while let Some(chunk) = output.next().await {
        buffer.extend_from_slice(&chunk?.into_bytes());
        while let Some((kind, number, packet)) = take_packet(&mut buffer)? {
            match kind {
                OPEN => {
                    links.retain(|_, sender: &mut mpsc::Sender<_>| !sender.is_closed());
                    ensure!(links.len() < LINKS_AT_MOST, "too many links");
                    let (sender, packets) = mpsc::channel(WAITING_AT_MOST);
                    let link = RawPackets::dial(folder.as_fd()).context("our own listener")?;
                    tasks.spawn(serve_link(link, number, packets, to_sandbox.clone()));
                    links.insert(number, sender);
                }
                DATA => hand_over(&mut links, number, packet).await,
                CLOSE => drop(links.remove(&number)),
                other => bail!("an unknown kind {other}"),
            }
        }
    }
    Ok(())
}

/// Whoever floods a link that nobody reads loses that link, not the others.
async fn hand_over(links: &mut HashMap<u32, mpsc::Sender<Vec<u8>>>, number: u32, packet: Vec<u8>) {
    let Some(link) = links.get(&number) else {
        return;
    };
    let sent = tokio::time::timeout(LINK_PATIENCE, link.send(packet)).await;
    if !matches!(sent, Ok(Ok(()))) {
        links.remove(&number);
    }
}

/// Takes one packet off the front, if it is there as a whole.
fn take_packet(buffer: &mut BytesMut) -> anyhow::Result<Option<(u8, u32, Vec<u8>)>> {
    if buffer.len() < HEADER_BYTES {
        return Ok(None);
    }
    let mut header = &buffer[..HEADER_BYTES];
    let (kind, number, length) = (header.get_u8(), header.get_u32(), header.get_u32() as usize);
    ensure!(length <= MAX_PACKET_BYTES, "a packet of {length} bytes");
    if buffer.len() < HEADER_BYTES + length {
        return Ok(None);
    }
    buffer.advance(HEADER_BYTES);
    Ok(Some((kind, number, buffer.split_to(length).to_vec())))
}

fn packet(kind: u8, number: u32, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![kind];
    packet.extend(number.to_be_bytes());
    packet.extend((payload.len() as u32).to_be_bytes());
    packet.extend(payload);
    packet
}

async fn serve_link(
    link: RawPackets,
    number: u32,
    mut from_sandbox: mpsc::Receiver<Vec<u8>>,
    to_sandbox: mpsc::UnboundedSender<Vec<u8>>,
) {
    loop {
        let alive = tokio::select! {
            packet = from_sandbox.recv() => match packet {
                Some(packet) => link.send(&packet).await.is_ok(),
                None => false,
            },
            received = link.receive() => match received {
                Ok(payload) if !payload.is_empty() => to_sandbox.send(packet(DATA, number, &payload)).is_ok(),
                _ => false,
            },
        };
        if !alive {
            let _exec_has_ended = to_sandbox.send(packet(CLOSE, number, &[]));
            return;
        }
    }
}

async fn write_all(
    mut input: Pin<Box<dyn AsyncWrite + Send>>,
    mut queue: mpsc::UnboundedReceiver<Vec<u8>>,
) {
    while let Some(packet) = queue.recv().await {
        if input.write_all(&packet).await.is_err() || input.flush().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_come_out_of_the_stream_as_they_went_in() {
        let mut buffer = BytesMut::new();
        let stream = [packet(OPEN, 7, &[]), packet(DATA, 7, b"hello")].concat();
        let mut found = Vec::new();
        for byte in stream {
            buffer.extend_from_slice(&[byte]);
            found.extend(take_packet(&mut buffer).unwrap());
        }
        assert_eq!(found, [(OPEN, 7, vec![]), (DATA, 7, b"hello".to_vec())]);
        assert!(buffer.is_empty());
    }

    #[test]
    fn a_packet_longer_than_the_protocol_allows_ends_the_bridge() {
        let mut buffer = BytesMut::from(&[DATA, 0, 0, 0, 1, 255, 255, 255, 255][..]);
        assert!(take_packet(&mut buffer).is_err());
    }
}
