//! The socket that a sandbox's kernel dials: bound in the host-owned control folder, peers checked by pid.
//! Never reads a frame. Invariant: only the sandbox's own init gets past `accept`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::socket::watch;

pub(super) const SOCKET_NAME: &str = "kernel.sock";
const BACKLOG: i32 = 64;
const STRANGER_PAUSE: Duration = Duration::from_millis(25);

pub struct KernelListener {
    fd: AsyncFd<OwnedFd>,
    stranger_seen: AtomicBool,
}

impl KernelListener {
    /// Binds `kernel.sock` in `control_dir`, in place of one that an earlier service left.
    pub fn bind(control_dir: &Path) -> io::Result<Self> {
        let folder = rustix::fs::open(
            control_dir,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        match rustix::fs::unlinkat(&folder, SOCKET_NAME, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let fd = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        // Through the folder's fd, because a socket address holds 107 bytes and WORK_ROOT may be longer.
        let address = format!("/proc/self/fd/{}/{SOCKET_NAME}", folder.as_raw_fd());
        rustix::net::bind(&fd, &SocketAddrUnix::new(address)?)?;
        // The sandbox's user must be able to connect; the folder above keeps other users of the host out.
        rustix::fs::chmodat(
            &folder,
            SOCKET_NAME,
            Mode::from_raw_mode(0o666),
            AtFlags::empty(),
        )?;
        rustix::net::listen(&fd, BACKLOG)?;
        Ok(Self {
            fd: watch(fd, Interest::READABLE)?,
            stranger_seen: AtomicBool::new(false),
        })
    }

    /// The next connection of the process `init_pid`; others are closed.
    pub async fn accept(&self, init_pid: i32) -> io::Result<OwnedFd> {
        loop {
            let connection = self
                .fd
                .async_io(Interest::READABLE, |fd| {
                    rustix::net::accept_with(fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
                        .map_err(io::Error::from)
                })
                .await?;
            let peer = sockopt::socket_peercred(connection.as_fd())?;
            if peer.pid.as_raw_nonzero().get() == init_pid {
                return Ok(connection);
            }
            // Whoever dials in vain does it at the host's expense: it is told once and slowed down.
            if !self.stranger_seen.swap(true, Ordering::Relaxed) {
                let peer_pid = peer.pid.as_raw_nonzero().get();
                tracing::warn!(
                    peer_pid,
                    init_pid,
                    "a process other than a sandbox's init dialled its kernel socket"
                );
            }
            drop(connection);
            tokio::time::sleep(STRANGER_PAUSE).await;
        }
    }
}
