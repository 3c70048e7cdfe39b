"""The supervisor: links to the host, the worker's life, interrupts, zombies. PID 1 of a sandbox.

It never runs user code, never blocks on the worker or the host, and never gives up dialling.
While the control link is up there is a worker, or one is being made.
"""

from __future__ import annotations

import os
import sys
from _signal import SIG_DFL, SIGCHLD, SIGINT, set_wakeup_fd, signal
from _socket import AF_UNIX, MSG_DONTWAIT, MSG_NOSIGNAL, SOCK_CLOEXEC, SOCK_SEQPACKET
from _socket import socket as Socket
from select import EPOLLIN, EPOLLOUT, epoll
from time import monotonic, sleep

from cellblock_kernel import linux, processes
from cellblock_kernel.commands import Commands
from cellblock_kernel.frames import PACKET_LIMIT, Assembler, ProtocolError, encode, packets
from cellblock_kernel.launch import WorkerHandle, end_link, launch
from cellblock_kernel.private import BUILTINS as __builtins__  # noqa: F401
from cellblock_kernel.relay import Pipe

_REDIAL_FIRST_SECS = 0.02
_REDIAL_MOST_SECS = 0.5
_FORK_ATTEMPTS = 100
_WARM_UP_AFTER_SECS = 0.05


class Supervisor:
    """One event loop over the control link, the worker's pipes and the deaths of children."""

    def __init__(self, socket_path: str, workspace: str, preload_failed: list[str]) -> None:
        """Prepare everything that does not need the host."""
        self._socket_path = socket_path
        # No socket of the host is mounted: a bridge that came in by exec carries the links.
        self._bridged = socket_path.startswith("\0")
        self._workspace = workspace
        self._preload_failed = preload_failed
        self._epoll = epoll()
        self._handlers: dict[int, object] = {}
        self._control: Socket | None = None
        self._assembler = Assembler()
        self._worker: WorkerHandle | None = None
        self._spare_link: Socket | None = None
        self._generation = 0
        self._redial_secs = _REDIAL_FIRST_SECS
        self._due: dict[str, float] = {}
        self._warm = False
        self._commands = Commands(self._watch, self._unwatch, self._on_reaped)
        self._wake_read, self._wake_write = os.pipe()
        self._watch_children()

    def run(self) -> None:
        """Serve for ever."""
        self._connect()
        while True:
            self._turn()

    def _watch_children(self) -> None:
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal(SIGCHLD, lambda _signum, _frame: None)
        # Python's own SIGINT handler would let any process of the sandbox raise in here.
        signal(SIGINT, SIG_DFL)
        self._watch(self._wake_read, self._on_child)
        linux.set_dumpable(0)
        if os.getpid() != 1:
            linux.become_subreaper()

    def _turn(self) -> None:
        for fd, _mask in self._epoll.poll(self._wait_secs()):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler()
        now = monotonic()
        for name in [name for name, at in self._due.items() if at <= now]:
            del self._due[name]
            getattr(self, name)()

    def _wait_secs(self) -> float:
        if not self._due:
            return -1
        return max(0.0, min(self._due.values()) - monotonic())

    def _after(self, secs: float, method: str) -> None:
        self._due.setdefault(method, monotonic() + secs)

    def _watch(self, fd: int, handler: object, mask: int = EPOLLIN) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, mask)

    def _unwatch(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def _dial(self) -> Socket | None:
        link = Socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC)
        # Without this a host with a full backlog would block the loop.
        link.setblocking(False)
        try:
            link.connect(self._socket_path)
        except OSError:
            link.close()
            return None
        link.setblocking(True)
        return link

    def _connect(self) -> None:
        """Dial both links; on failure again later, for ever."""
        control = self._dial()
        cell = self._dial() if control is not None else None
        if cell is None:
            if control is not None:
                control.close()
            self._after(self._redial_secs, "_connect")
            self._redial_secs = min(self._redial_secs * 2, _REDIAL_MOST_SECS)
            return
        self._redial_secs = _REDIAL_FIRST_SECS
        self._control = control
        self._assembler = Assembler()
        self._watch(control.fileno(), self._on_control)
        self._say(
            {
                "op": "hello",
                "role": "control",
                "protocol": 1,
                "python": ".".join(map(str, sys.version_info[:3])),
                "preload_failed": self._preload_failed,
            }
        )
        self._use_cell_link(cell)

    def _disconnect(self) -> None:
        """The host went away: end every link and start over."""
        # Whoever asked for these processes, and would have ended them in time, is gone.
        self._commands.kill_all()
        if self._control is not None:
            self._unwatch(self._control.fileno())
            self._control.close()
            self._control = None
        if self._spare_link is not None:
            end_link(self._spare_link)
            self._spare_link = None
        if self._worker is not None:
            self._drop_cell_link()
        self._after(self._redial_secs, "_connect")

    def _drop_cell_link(self) -> None:
        self._unblock()
        self._worker.drop_link()
        # With no link the backlog goes nowhere, and nobody waits for it any longer.
        self._worker.relay.push()

    def _use_cell_link(self, link: Socket) -> None:
        """Give a fresh link to a new worker, or keep it until the old one asks for it."""
        if self._worker is None:
            self._launch(link)
        elif self._worker.wants_link:
            self._worker.hand_over(link)
        else:
            self._spare_link = link

    def _renew_cell_link(self) -> None:
        """The worker asked for a link, or there is no worker yet."""
        if self._control is None:
            return
        link, self._spare_link = self._spare_link, None
        link = link or self._dial()
        if link is None:
            self._disconnect()
        else:
            self._use_cell_link(link)

    def _say(self, frame: dict[str, object]) -> None:
        try:
            for packet in packets(encode(frame)):
                self._control.send(packet, MSG_DONTWAIT | MSG_NOSIGNAL)
        except OSError:
            self._disconnect()

    def _on_control(self) -> None:
        try:
            packet = self._control.recv(PACKET_LIMIT + 1, MSG_DONTWAIT)
            frame = self._assembler.feed(packet)
        except BlockingIOError:
            return
        except (OSError, ProtocolError):
            self._disconnect()
            return
        if frame is not None:
            self._answer(frame)

    def _answer(self, frame: dict[str, object]) -> None:
        answer = {"op": "ok", "id": frame.get("id")}
        if frame.get("op") == "interrupt":
            answer["running"] = self._interrupt(frame.get("execution"))
        elif frame.get("op") == "restart":
            self._restart()
            answer["generation"] = self._generation
        elif frame.get("op") == "spawn":
            answer["error"] = self._spawn(frame)
        elif frame.get("op") == "kill":
            self._commands.kill(frame.get("process"))
        elif frame.get("op") != "ping":
            return
        if self._control is not None and type(frame.get("id")) is int:
            self._say(answer)

    def _interrupt(self, execution: object) -> bool:
        worker = self._worker
        # 0 means whatever runs: a service that was just started does not know the last one's cell.
        if worker is None or not worker.running or execution not in (0, worker.running):
            return False
        try:
            os.kill(worker.pid, SIGINT)
        except ProcessLookupError:
            return False
        return True

    def _spawn(self, frame: dict[str, object]) -> str:
        link = self._dial()
        if link is None:
            return "no link to the host could be made"
        return self._commands.start(frame, link, self._workspace)

    def _restart(self) -> None:
        worker = self._worker
        ended = self._end_all_others()
        self._commands.note_ended(ended)
        if worker is not None:
            # SIGKILL is what it got; a worker that ended by itself just before tells its own end.
            self._bury(ended.get(worker.pid, 9))
        self._due.pop("_renew_cell_link", None)
        self._renew_cell_link()

    def _end_all_others(self) -> dict[int, int]:
        return processes.end_all_others(spare_visitors=self._bridged)

    def _launch(self, link: Socket) -> None:
        own_fds = [self._epoll.fileno(), self._wake_read, self._wake_write]
        if self._control is not None:
            own_fds.append(self._control.fileno())
        own_fds += self._commands.descriptors()
        for _ in range(_FORK_ATTEMPTS):
            try:
                worker = launch(link, self._generation + 1, self._workspace, own_fds)
                break
            except OSError:
                # A fork bomb has taken every slot, or memory is full of what the last worker left.
                self._commands.note_ended(self._end_all_others())
                sleep(0.01)
        else:
            end_link(link)
            self._after(_REDIAL_MOST_SECS, "_renew_cell_link")
            return
        self._generation += 1
        self._worker = worker
        for pipe in worker.pipes:
            self._watch_pipe(pipe)
        self._watch(worker.handoff.fileno(), self._on_poke)
        if not self._warm:
            self._after(_WARM_UP_AFTER_SECS, "_warm_up")

    def _warm_up(self) -> None:
        """Load what workers need for their first traceback, once, so that later ones inherit it."""
        self._warm = True
        import linecache  # noqa: F401
        import subprocess  # noqa: F401
        import traceback  # noqa: F401

    def _on_child(self) -> None:
        try:
            while os.read(self._wake_read, 4096):
                pass
        except BlockingIOError:
            pass
        self._on_reaped(processes.reap())

    def _on_reaped(self, ended: dict[int, int]) -> None:
        """Children have ended: the host's programs, the worker, or what they left behind."""
        self._commands.note_ended(ended)
        status = ended.get(self._worker.pid if self._worker else 0)
        if status is None:
            return
        lived_secs = monotonic() - self._worker.last_handover
        # What the dead worker left running belongs to a state that is gone; what the host
        # asked for does not.
        if self._commands.marks:
            self._commands.note_ended(processes.end_all_but(self._commands.marks))
        else:
            self._end_all_others()
        self._bury(status)
        if lived_secs > _REDIAL_FIRST_SECS:
            self._renew_cell_link()
        else:
            self._after(_REDIAL_FIRST_SECS, "_renew_cell_link")

    def _bury(self, status: int) -> None:
        worker, self._worker = self._worker, None
        self._unblock(worker)
        for pipe in worker.pipes:
            self._unwatch(pipe.fd)
        self._unwatch(worker.handoff.fileno())
        worker.report_death(status)
        worker.close()

    def _watch_pipe(self, pipe: Pipe) -> None:
        self._watch(pipe.fd, lambda: self._on_output(pipe))

    def _on_output(self, pipe: Pipe) -> None:
        relay = self._worker.relay
        try:
            if not relay.pump(pipe):
                self._unwatch(pipe.fd)
        except BlockingIOError:
            relay.push()
        if relay.blocked:
            self._block()

    def _block(self) -> None:
        """Stop reading output until the host has taken what waits."""
        for pipe in self._worker.pipes:
            self._unwatch(pipe.fd)
        if self._worker.relay.link.fileno() not in self._handlers:
            self._watch(self._worker.relay.link.fileno(), self._on_writable, EPOLLOUT)

    def _on_writable(self) -> None:
        self._worker.relay.push()
        if not self._worker.relay.blocked:
            self._unblock()

    def _unblock(self, worker: WorkerHandle | None = None) -> None:
        worker = worker or self._worker
        link = worker.relay.link
        if link is None or link.fileno() not in self._handlers:
            return
        self._unwatch(link.fileno())
        for pipe in worker.pipes:
            self._watch_pipe(pipe)

    def _on_poke(self) -> None:
        """The worker asks: F to send what is held now, L for a new link."""
        worker = self._worker
        try:
            request = worker.handoff.recv(16, MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            request = b""
        if request == b"F":
            worker.relay.push()
            if worker.relay.blocked:
                self._block()
        elif request == b"L":
            self._on_link_wanted(worker)
        elif request == b"":
            self._unwatch(worker.handoff.fileno())

    def _on_link_wanted(self, worker: WorkerHandle) -> None:
        worker.wants_link = True
        self._drop_cell_link()
        if monotonic() - worker.last_handover > _REDIAL_MOST_SECS:
            self._renew_cell_link()
        else:
            # A host that ends each new link at once must not make us spin.
            self._after(_REDIAL_FIRST_SECS, "_renew_cell_link")
