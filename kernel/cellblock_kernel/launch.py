"""Makes a worker: its page, its pipes, its hand-off socket, the fork.

It never runs a cell and never talks to the host itself.
The child holds none of the supervisor's descriptors; the parent holds none of the worker's ends.
"""

from __future__ import annotations

import os
from _signal import SIG_DFL, SIGCHLD, set_wakeup_fd, signal
from _socket import (
    AF_UNIX,
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    SCM_RIGHTS,
    SOCK_SEQPACKET,
    SOL_SOCKET,
    socketpair,
)
from _socket import socket as Socket
from select import POLLOUT, poll
from sys import byteorder
from time import monotonic

from cellblock_kernel import linux
from cellblock_kernel.frames import encode, packets
from cellblock_kernel.page import RUNNING, Page
from cellblock_kernel.private import BUILTINS as __builtins__  # noqa: F401
from cellblock_kernel.relay import Pipe, Relay
from cellblock_kernel.worker import Worker

_SHUT_RDWR = 2
_LAST_WORDS_SECS = 1.0


class WorkerHandle:
    """The supervisor's side of one worker."""

    def __init__(self, pid: int, generation: int, page: Page, handoff: Socket) -> None:
        """Wrap what the fork left in the parent."""
        self.pid = pid
        self.generation = generation
        self.page = page
        self.handoff = handoff
        self.relay = Relay(page)
        self.pipes: list[Pipe] = []
        self.wants_link = False
        self.last_handover = 0.0

    @property
    def running(self) -> int:
        """The execution under way as the worker tells it, else 0."""
        return self.page.words[RUNNING]

    def hand_over(self, link: Socket) -> None:
        """Give the worker a new cell link and keep a copy."""
        fds = link.fileno().to_bytes(4, byteorder)
        self.wants_link = False
        self.last_handover = monotonic()
        try:
            self.handoff.sendmsg(
                [b"L"], [(SOL_SOCKET, SCM_RIGHTS, fds)], MSG_DONTWAIT | MSG_NOSIGNAL
            )
        except OSError:
            # A worker that filled or closed its end has broken itself; its death is news enough.
            pass
        self.relay.link = link

    def drop_link(self) -> None:
        """End the cell link for everybody who holds a copy of it."""
        link, self.relay.link = self.relay.link, None
        if link is not None:
            end_link(link)

    def report_death(self, status: int) -> None:
        """Send what is left of the output, then the news, and end the link."""
        self.relay.final_drain(self.pipes)
        if self.relay.link is not None:
            self._send_last_words(status)
        self.drop_link()

    def _send_last_words(self, status: int) -> None:
        link = self.relay.link
        if os.WIFSIGNALED(status):
            reason, code = "signal", os.WTERMSIG(status)
        else:
            reason, code = "exit", os.WEXITSTATUS(status)
        frame = {"op": "died", "id": self.running, "reason": reason, "code": code}
        deadline = monotonic() + _LAST_WORDS_SECS
        while self.relay.blocked and _wait_writable(link, deadline):
            self.relay.push()
        while _wait_writable(link, deadline):
            try:
                link.send(packets(encode(frame))[0], MSG_DONTWAIT | MSG_NOSIGNAL)
                return
            except BlockingIOError:
                continue
            except OSError:
                return

    def close(self) -> None:
        """Give everything back after the worker's death."""
        self.handoff.close()
        for pipe in self.pipes:
            os.close(pipe.fd)
        self.page.close()


def _wait_writable(link: Socket, deadline: float) -> bool:
    left = deadline - monotonic()
    if left <= 0:
        return False
    poller = poll()
    poller.register(link.fileno(), POLLOUT)
    return bool(poller.poll(left * 1000))


def end_link(link: Socket) -> None:
    """Shut a link down for all copies of it and close this one."""
    try:
        link.shutdown(_SHUT_RDWR)
    except OSError:
        pass
    link.close()


def launch(link: Socket, generation: int, workspace: str, own_fds: list[int]) -> WorkerHandle:
    """Fork a worker that serves `link`; OSError if there is no room for another process."""
    page = Page()
    handoff, worker_handoff = (
        Socket(AF_UNIX, SOCK_SEQPACKET, 0, end.detach())
        for end in socketpair(AF_UNIX, SOCK_SEQPACKET)
    )
    reads, writes = zip(*(os.pipe(), os.pipe()))
    for fd in reads:
        os.set_blocking(fd, False)
    try:
        pid = os.fork()
    except OSError:
        for fd in reads + writes:
            os.close(fd)
        handoff.close()
        worker_handoff.close()
        raise
    if pid == 0:
        _become_worker(
            link,
            generation,
            workspace,
            page,
            worker_handoff,
            writes,
            [*own_fds, *reads, handoff.detach()],
        )
    for fd in writes:
        os.close(fd)
    worker_handoff.close()
    handle = WorkerHandle(pid, generation, page, handoff)
    handle.pipes = [Pipe(reads[0], 0), Pipe(reads[1], 1)]
    handle.relay.link = link
    handle.last_handover = monotonic()
    return handle


def _become_worker(
    link: Socket,
    generation: int,
    workspace: str,
    page: Page,
    handoff: Socket,
    writes: tuple[int, ...],
    supervisor_fds: list[int],
) -> None:
    """Turn the forked child into the worker; it does not return."""
    try:
        set_wakeup_fd(-1)
        signal(SIGCHLD, SIG_DFL)
        for fd in supervisor_fds:
            os.close(fd)
        linux.set_dumpable(1)
        linux.offer_to_oom_killer()
        os.setsid()
        Worker(link.detach(), handoff.detach(), writes, page, generation, workspace).serve()
    finally:
        os._exit(70)
