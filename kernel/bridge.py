"""Carries kernel links over standard input and output, where no socket of the host can be mounted.

Run by the service with `docker exec`. It owns the socket that the supervisor dials.
It never looks into a packet.
Only PID 1 may dial, where the system tells who does. Every link ends with the exec.
"""

import os
import sys
from _socket import AF_UNIX, SO_PEERCRED, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_SEQPACKET, SOL_SOCKET
from _socket import socket as Socket
from select import EPOLLHUP, EPOLLIN, EPOLLOUT, epoll

_NAME = "\0cellblock-kernel"
_SET_DUMPABLE = 4
_OPEN, _DATA, _CLOSE = 0, 1, 2
_HEADER_SIZE = 9
_PACKET_LIMIT = 61_441
_LINKS_AT_MOST = 80
_WAITING_AT_MOST = 256


def _peer_pid(link: Socket) -> int:
    return int.from_bytes(link.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)[:4], sys.byteorder)


def _peers_are_told() -> bool:
    """Whether the system says who dials; gVisor names the asking process instead."""
    name = f"{_NAME}-{os.getpid()}"
    listener = Socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC)
    listener.bind(name)
    listener.listen(1)
    child = os.fork()
    if child == 0:
        Socket(AF_UNIX, SOCK_SEQPACKET).connect(name)
        os._exit(0)
    fd, _address = listener._accept()
    told = _peer_pid(Socket(AF_UNIX, SOCK_SEQPACKET, 0, fd)) == child
    os.waitpid(child, 0)
    listener.close()
    return told


class Bridge:
    """One event loop over standard input, the listening socket and the links."""

    def __init__(self) -> None:
        """Listen where the supervisor dials."""
        self._peers_are_told = _peers_are_told()
        self._listener = Socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK)
        self._listener.bind(_NAME)
        self._listener.listen(_LINKS_AT_MOST)
        self._links: dict[int, Socket] = {}
        self._waiting: dict[int, list[bytes]] = {}
        self._next_link = 1
        self._numbers: dict[int, int] = {}
        self._incoming = bytearray()
        self._epoll = epoll()
        self._epoll.register(0, EPOLLIN)
        self._epoll.register(self._listener.fileno(), EPOLLIN)

    def run(self) -> None:
        """Carry packets until the service hangs up."""
        while True:
            for fd, mask in self._epoll.poll():
                if fd == 0:
                    if not self._read_host():
                        return
                elif fd == self._listener.fileno():
                    self._accept()
                elif fd in self._numbers:
                    self._serve(self._numbers[fd], mask)

    def _accept(self) -> None:
        fd, _address = self._listener._accept()
        link = Socket(AF_UNIX, SOCK_SEQPACKET, 0, fd)
        link.setblocking(False)
        stranger = self._peers_are_told and _peer_pid(link) != 1
        if stranger or len(self._links) >= _LINKS_AT_MOST:
            link.close()
            return
        number = self._next_link
        self._next_link += 1
        self._links[number] = link
        self._numbers[fd] = number
        self._waiting[number] = []
        self._epoll.register(fd, EPOLLIN)
        self._tell(_OPEN, number)

    def _serve(self, number: int, mask: int) -> None:
        if mask & EPOLLOUT:
            self._push(number)
        if mask & (EPOLLIN | EPOLLHUP) and number in self._links:
            try:
                packet = self._links[number].recv(_PACKET_LIMIT + 1)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if packet:
                self._tell(_DATA, number, packet)
            else:
                self._end(number)
                self._tell(_CLOSE, number)

    def _end(self, number: int) -> None:
        link = self._links.pop(number)
        del self._waiting[number], self._numbers[link.fileno()]
        self._epoll.unregister(link.fileno())
        link.close()

    def _read_host(self) -> bool:
        data = os.read(0, 1 << 16)
        self._incoming += data
        while len(self._incoming) >= _HEADER_SIZE:
            kind = self._incoming[0]
            number = int.from_bytes(self._incoming[1:5], "big")
            end = _HEADER_SIZE + int.from_bytes(self._incoming[5:9], "big")
            if len(self._incoming) < end:
                break
            packet = bytes(self._incoming[_HEADER_SIZE:end])
            del self._incoming[:end]
            self._from_host(kind, number, packet)
        return bool(data)

    def _from_host(self, kind: int, number: int, packet: bytes) -> None:
        if number not in self._links:
            return
        if kind == _CLOSE:
            self._end(number)
        elif kind == _DATA:
            self._waiting[number].append(packet)
            self._push(number)
            if len(self._waiting.get(number, ())) > _WAITING_AT_MOST:
                self._end(number)
                self._tell(_CLOSE, number)

    def _push(self, number: int) -> None:
        link, waiting = self._links[number], self._waiting[number]
        mask = EPOLLIN
        while waiting:
            try:
                link.send(waiting[0])
            except BlockingIOError:
                mask |= EPOLLOUT
                break
            except OSError:
                self._end(number)
                self._tell(_CLOSE, number)
                return
            del waiting[0]
        self._epoll.modify(link.fileno(), mask)

    def _tell(self, kind: int, number: int, packet: bytes = b"") -> None:
        header = bytes([kind]) + number.to_bytes(4, "big") + len(packet).to_bytes(4, "big")
        data = memoryview(header + packet)
        while data:
            data = data[os.write(1, data) :]


def _hide() -> None:
    """Keep code of the same uid out of this process's memory and descriptors."""
    import ctypes

    ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)


if __name__ == "__main__":
    _hide()
    try:
        Bridge().run()
    except (OSError, KeyboardInterrupt):
        pass
