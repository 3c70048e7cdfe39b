//! One packet socket as an async object: whole packets in, whole packets out.
//! Knows nothing of frames' meaning. Invariant: a packet is sent whole or not at all.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use futures_util::FutureExt;
use rustix::io::Errno;
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

thread_local! {
    /// Where this thread receives packets, of whichever link: one that is silent then costs no buffer. One byte longer
    /// than the longest legal packet, so that an overlong one shows as such.
    static PACKET: RefCell<Box<[u8]>> =
        RefCell::new(vec![0; frame::MAX_PACKET_BYTES + 1].into_boxed_slice());
}

pub struct PacketSocket {
    fd: AsyncFd<OwnedFd>,
    assembler: Assembler,
    pace: Pace,
}

impl PacketSocket {
    /// The fd must be a non-blocking SEQPACKET socket.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            // Not for room to write: a local socket tells of that whenever its peer has read a packet, which would wake
            // this process once more for every cell, just when the sandbox has better use for the core.
            fd: watch(fd, Interest::READABLE)?,
            assembler: Assembler::default(),
            pace: Pace::default(),
        })
    }

    pub async fn send_frame(&self, frame: &[u8]) -> Result<(), SocketError> {
        for packet in frame::packets(frame)? {
            if !send(self.fd.get_ref(), &packet)? {
                self.send_when_there_is_room(&packet).await?;
            }
        }
        Ok(())
    }

    /// On a second descriptor of the same socket, watched for just this.
    async fn send_when_there_is_room(&self, packet: &[u8]) -> io::Result<()> {
        let watched = watch(self.fd.get_ref().try_clone()?, Interest::WRITABLE)?;
        loop {
            let mut ready = watched.writable().await?;
            if send(watched.get_ref(), packet)? {
                return Ok(());
            }
            ready.clear_ready();
        }
    }

    /// Something new is asked of the peer: what it answers is read at full speed again.
    pub fn begin_anew(&mut self) {
        self.pace = Pace::default();
    }

    /// May be dropped at any point without losing a packet.
    pub async fn next_frame(&mut self) -> Result<Vec<u8>, SocketError> {
        loop {
            self.pace.keep().await;
            let (assembler, pace) = (&mut self.assembler, &mut self.pace);
            let received = self
                .fd
                .async_io(Interest::READABLE, |fd| receive(fd, assembler, pace))
                .await?;
            if let Some(frame) = received? {
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
}

/// How fast a link is read. Reading is the host's work, and no limit of the sandbox counts it: code that sends rubbish
/// as fast as it can would take a core from its neighbours. What an execution rightly sends is read at full speed.
#[derive(Default)]
struct Pace {
    read_bytes: usize,
    /// Beyond the free part, since the last pause.
    unpaid_bytes: usize,
}

impl Pace {
    const FREE_BYTES: usize = 16 << 20;
    const BYTES_PER_PAUSE: usize = 128 << 10;
    const PAUSE: Duration = Duration::from_millis(1);
    /// What a packet costs, however short it is.
    const LEAST_BYTES: usize = 1024;

    fn count(&mut self, packet_bytes: usize) {
        let cost = packet_bytes.max(Self::LEAST_BYTES);
        self.read_bytes = self.read_bytes.saturating_add(cost);
        if self.read_bytes > Self::FREE_BYTES {
            self.unpaid_bytes += cost;
        }
    }

    async fn keep(&mut self) {
        if self.unpaid_bytes >= Self::BYTES_PER_PAUSE {
            tokio::time::sleep(Self::PAUSE).await;
            self.unpaid_bytes = 0;
        }
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

/// False if there is no room for the packet now.
fn send(fd: &OwnedFd, packet: &[u8]) -> io::Result<bool> {
    match rustix::net::send(fd, packet, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Takes one packet from the socket; gives the frame that it completes, if it does.
fn receive(
    fd: &OwnedFd,
    assembler: &mut Assembler,
    pace: &mut Pace,
) -> io::Result<Result<Option<Vec<u8>>, SocketError>> {
    PACKET.with_borrow_mut(|packet| {
        let mut take = || rustix::net::recv(fd, &mut **packet, RecvFlags::DONTWAIT);
        let (length, _) = match take() {
            // The peer closed without reading all; that is told first, and once. Its last words are still to be read.
            Err(Errno::CONNRESET) => take()?,
            taken => taken?,
        };
        if length == 0 {
            return Ok(Err(SocketError::Ended));
        }
        pace.count(length);
        Ok(assembler.push(&packet[..length]).map_err(SocketError::from))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_last_words_of_a_peer_that_closed_without_reading_are_heard() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let (mut ours, theirs) = (
            PacketSocket::new(ours).unwrap(),
            PacketSocket::new(theirs).unwrap(),
        );
        ours.send_frame(b"a cell").await.unwrap();
        theirs.send_frame(b"it died").await.unwrap();
        drop(theirs);
        assert_eq!(ours.next_frame().await.unwrap(), b"it died");
        let end = ours.next_frame().await;
        assert!(matches!(end, Err(SocketError::Ended)), "{end:?}");
    }

    #[tokio::test]
    async fn more_than_the_socket_holds_arrives_whole_and_in_order() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let ours = PacketSocket::new(ours).unwrap();
        let mut theirs = PacketSocket::new(theirs).unwrap();
        let frames: Vec<Vec<u8>> = (0..20_u8).map(|n| vec![n; 300_000]).collect();
        let sent = async {
            for frame in &frames {
                ours.send_frame(frame).await.unwrap();
            }
        };
        let received = async {
            // Only when the sender has had to wait.
            tokio::task::yield_now().await;
            for frame in &frames {
                assert_eq!(&theirs.next_frame().await.unwrap(), frame);
            }
        };
        tokio::join!(sent, received);
    }

    /// Whether the next read waits after packets of these sizes, and whether the one after that does.
    async fn waits(packet_bytes: usize, packets: usize) -> (bool, bool) {
        let mut pace = Pace::default();
        for _ in 0..packets {
            pace.count(packet_bytes);
        }
        let first = pace.keep().now_or_never().is_none();
        pace.keep().await;
        (first, pace.keep().now_or_never().is_none())
    }

    #[tokio::test]
    async fn what_an_execution_rightly_sends_is_read_at_full_speed_and_a_flood_is_not() {
        assert_eq!(waits(frame::MAX_PACKET_BYTES, 250).await, (false, false));
        assert_eq!(waits(frame::MAX_PACKET_BYTES, 400).await, (true, false));
        assert_eq!(waits(1, 10_000).await, (false, false));
        assert_eq!(
            waits(1, 20_000).await,
            (true, false),
            "short packets cost too"
        );
    }
}
