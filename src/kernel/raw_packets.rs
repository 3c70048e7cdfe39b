//! One end of a kernel link as plain packets, for a bridge that carries them without looking inside.
//! Never assembles frames. Invariant: it dials the socket in a folder by the folder's fd, so a rename does not matter.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::frame::MAX_PACKET_BYTES;
use super::listener::SOCKET_NAME;
use super::socket::watch;

pub struct RawPackets {
    fd: AsyncFd<OwnedFd>,
}

impl RawPackets {
    /// Dials the kernel socket in a control folder, as a kernel would.
    pub fn dial(control_dir: BorrowedFd<'_>) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let address = format!("/proc/self/fd/{}/{SOCKET_NAME}", control_dir.as_raw_fd());
        rustix::net::connect(fd.as_fd(), &SocketAddrUnix::new(address)?)?;
        Ok(Self {
            fd: watch(fd, Interest::READABLE | Interest::WRITABLE)?,
        })
    }

    pub async fn send(&self, packet: &[u8]) -> io::Result<()> {
        let send = |fd: &OwnedFd| {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            Ok(rustix::net::send(fd, packet, flags)?)
        };
        self.fd.async_io(Interest::WRITABLE, send).await.map(drop)
    }

    /// The next packet; an empty one means that the link has ended.
    pub async fn receive(&self) -> io::Result<Vec<u8>> {
        let receive = |fd: &OwnedFd| {
            let mut buffer = vec![0; MAX_PACKET_BYTES];
            let (length, _) = rustix::net::recv(fd, &mut buffer, RecvFlags::DONTWAIT)?;
            buffer.truncate(length);
            Ok(buffer)
        };
        self.fd.async_io(Interest::READABLE, receive).await
    }
}
