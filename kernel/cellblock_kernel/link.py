"""The worker's end of the cell link: frames in and out, and a new link after the host restarted.

It never raises for a host that is gone: frames then go nowhere until the next link is taken.
The parts of one frame are never mixed with parts of another.
"""

from __future__ import annotations

from _socket import (
    AF_UNIX,
    CMSG_SPACE,
    MSG_CMSG_CLOEXEC,
    MSG_NOSIGNAL,
    SOCK_SEQPACKET,
)
from _socket import socket as Socket
from errno import EBADF, ENOTSOCK
from os import _exit
from sys import byteorder

from cellblock_kernel.descriptors import Kept
from cellblock_kernel.frames import PACKET_LIMIT, Assembler, ProtocolError, packets
from cellblock_kernel.private import BUILTINS as __builtins__  # noqa: F401


def _wrap(fd: int) -> Socket:
    return Socket(AF_UNIX, SOCK_SEQPACKET, 0, fd)


class Link:
    """Sends and receives on whichever cell link is current."""

    def __init__(self, link_fd: int, handoff_fd: int) -> None:
        """Take both descriptors over."""
        self._handoff = Kept(handoff_fd)
        self._handoff_socket = _wrap(self._handoff.fd)
        self._use(link_fd)

    def _use(self, fd: int) -> None:
        self._kept = Kept(fd)
        self._socket = _wrap(self._kept.fd)
        self._assembler = Assembler()

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._kept.fd

    def mend(self) -> None:
        """Undo what user code did to the link's descriptor."""
        self._kept.mend()

    def receive(self) -> dict[str, object] | None:
        """The next frame, however long it takes; None when the link has ended."""
        while True:
            try:
                packet = self._socket.recv(PACKET_LIMIT + 1)
                frame = self._assembler.feed(packet)
            except (OSError, ProtocolError) as error:
                if getattr(error, "errno", 0) not in (EBADF, ENOTSOCK):
                    return None
                self._kept.mend()
                continue
            if frame is not None:
                return frame

    def send(self, packet: bytes) -> None:
        """One packet, or nothing if the host is gone."""
        try:
            self._socket.send(packet, MSG_NOSIGNAL)
        except OSError as error:
            if error.errno in (EBADF, ENOTSOCK):
                self._kept.mend()
                self.send(packet)

    def send_frame(self, payload: bytes) -> None:
        """One encoded frame, in as many packets as it takes."""
        for packet in packets(payload):
            self.send(packet)

    def poke(self, request: bytes) -> None:
        """Say one word to the supervisor."""
        self._handoff.mend()
        try:
            self._handoff_socket.send(request, MSG_NOSIGNAL)
        except OSError:
            _exit(0)

    def renew(self) -> None:
        """Let the old link go and wait for the supervisor to pass a new one."""
        self._socket.detach()
        # Closed first: with every descriptor in use these two places are what the new one needs.
        self._kept.give_up()
        self.poke(b"L")
        _data, control, _flags, _address = self._handoff_socket.recvmsg(
            16, CMSG_SPACE(4), MSG_CMSG_CLOEXEC
        )
        if not control:
            _exit(0)
        self._use(int.from_bytes(control[0][2][:4], byteorder))
