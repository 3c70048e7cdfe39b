//! One packet socket as an async object: whole packets in, whole packets out.
//! Knows nothing of frames' meaning. Invariant: a packet is sent whole or not at all.

use std::io;
use std::os::fd::OwnedFd;

use futures_util::FutureExt;
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::frame::{self, Assembler, FrameError};

#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("the link ended")]
    Ended,
    #[error("the link failed: {0}")]
    Io(#[from] io::Error),
    #[error("the sandbox sent {0}")]
    Frame(#[from] FrameError),
}

pub struct PacketSocket {
    fd: AsyncFd<OwnedFd>,
    assembler: Assembler,
    buffer: Box<[u8]>,
}

impl PacketSocket {
    /// The fd must be a non-blocking SEQPACKET socket.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            fd: watch(fd, Interest::READABLE | Interest::WRITABLE)?,
            assembler: Assembler::default(),
            buffer: vec![0; frame::MAX_PACKET_BYTES + 1].into_boxed_slice(),
        })
    }

    pub async fn send_frame(&self, frame: &[u8]) -> Result<(), SocketError> {
        for packet in frame::packets(frame)? {
            self.fd
                .async_io(Interest::WRITABLE, |fd| {
                    rustix::net::send(fd, &packet, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
                        .map_err(io::Error::from)
                })
                .await?;
        }
        Ok(())
    }

    pub async fn next_frame(&mut self) -> Result<Vec<u8>, SocketError> {
        loop {
            let buffer = &mut self.buffer;
            let length = self
                .fd
                .async_io(Interest::READABLE, |fd| receive(fd, buffer))
                .await?;
            if let Some(frame) = self.take_packet(length)? {
                return Ok(frame);
            }
        }
    }

    /// Nothing is awaited any more: the next read shall wait for news at once, without trying first.
    pub fn expect_silence(&self) {
        if let Some(Ok(mut ready)) = self.fd.readable().now_or_never() {
            ready.clear_ready();
        }
    }

    fn take_packet(&mut self, length: usize) -> Result<Option<Vec<u8>>, SocketError> {
        if length == 0 {
            return Err(SocketError::Ended);
        }
        Ok(self.assembler.push(&self.buffer[..length])?)
    }
}

/// Registers an fd with the runtime.
#[expect(
    unsafe_code,
    reason = "tokio leaves it to the caller that the fd stays open and the same while it is registered"
)]
pub(super) fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd is open and stays the same file until it is dropped, and AsyncFd deregisters before it drops it.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(io::Error::from)
}

/// The buffer is one byte longer than the longest legal packet, so an overlong one shows as such.
fn receive(fd: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    let (length, _) = rustix::net::recv(fd, buffer, RecvFlags::DONTWAIT)?;
    Ok(length)
}
