"""Processes that the host asked for, beside the worker: their start, their output, their end.

It never waits for a process and never keeps more output than one read: a slow host slows it down.
A process that was killed here is gone, with everything it started, when the kill returns.
"""

from __future__ import annotations

import os
from _collections import deque
from _socket import MSG_DONTWAIT, MSG_NOSIGNAL
from _socket import socket as Socket
from select import EPOLLIN, EPOLLOUT

from cellblock_kernel import linux, processes
from cellblock_kernel.frames import TEXT_PIECE, encode, packets, stream_packet
from cellblock_kernel.launch import end_link
from cellblock_kernel.private import BUILTINS as __builtins__  # noqa: F401
from cellblock_kernel.relay import Pipe

_REASON_LIMIT = 300
# The most that a pipe can hold.
_FINAL_DRAIN_BYTES = 1_048_576


class Command:
    """One process, its two pipes and the link on which the host hears of it."""

    def __init__(self, number: int, mark: int, process: object, link: Socket) -> None:
        """Take over what was started."""
        self.number = number
        self.mark = mark
        self.process = process
        self.link = link
        self.pipes = [
            Pipe(process.stdout.fileno(), 0),
            Pipe(process.stderr.fileno(), 1),
        ]
        self.ended = False
        self.blocked = False
        self.backlog: deque[bytes] = deque()

    def take(self, pipe: Pipe) -> bool:
        """Queue what is in the pipe now; False once it has ended."""
        count, text = pipe.read()
        # What a grandchild prints after the process has ended belongs to nobody.
        if not self.ended:
            self._queue(pipe, text)
        return count > 0

    def _queue(self, pipe: Pipe, text: str) -> None:
        for start in range(0, len(text), TEXT_PIECE):
            piece = text[start : start + TEXT_PIECE]
            self.backlog.append(stream_packet(self.number, pipe.stream, piece))

    def end(self, status: int) -> None:
        """The process has ended: queue what it left in its pipes, then the news."""
        for pipe in self.pipes:
            self._drain(pipe)
            self._queue(pipe, pipe.rest())
        signaled = os.WIFSIGNALED(status)
        news = {
            "op": "died",
            "id": self.number,
            "reason": "signal" if signaled else "exit",
            "code": os.WTERMSIG(status) if signaled else os.WEXITSTATUS(status),
        }
        self.backlog.extend(packets(encode(news)))
        self.ended = True
        # Popen would otherwise wait for it by itself one day.
        self.process.returncode = status

    def _drain(self, pipe: Pipe) -> None:
        """What is in the pipe, but not what somebody else keeps writing into it."""
        taken = 0
        try:
            while taken < _FINAL_DRAIN_BYTES:
                count, text = pipe.read()
                self._queue(pipe, text)
                taken += count
                if count == 0:
                    return
        except (BlockingIOError, ValueError):
            pass

    def push(self) -> bool:
        """Send what waits; False if the link takes no more for now."""
        while self.backlog:
            try:
                self.link.send(self.backlog[0], MSG_DONTWAIT | MSG_NOSIGNAL)
            except BlockingIOError:
                return False
            except OSError:
                self.backlog.clear()
                return True
            self.backlog.popleft()
        return True


class Commands:
    """All processes of the host, in the supervisor's event loop."""

    def __init__(self, watch: object, unwatch: object, reaped: object) -> None:
        """Use the loop's own way to watch a descriptor, and tell it of every child reaped here."""
        self._watch = watch
        self._unwatch = unwatch
        self._reaped = reaped
        self._by_number: dict[int, Command] = {}
        self._last_mark = 0

    @property
    def marks(self) -> set[int]:
        """Of the processes that the host asked for and that are still there."""
        return {command.mark for command in self._by_number.values() if not command.ended}

    def descriptors(self) -> list[int]:
        """What a worker that is forked must not keep."""
        fds = []
        for command in self._by_number.values():
            fds += [command.link.fileno(), *(pipe.fd for pipe in command.pipes)]
        return fds

    def start(self, frame: dict[str, object], link: Socket, cwd: str) -> str:
        """Start what the frame names and tell of it on `link`; the reason if that failed."""
        from subprocess import DEVNULL, PIPE, Popen

        number, argv = frame.get("process"), frame.get("argv")
        environment = {**os.environ, **frame.get("env", {})}
        self._last_mark = processes.next_mark(self._last_mark)
        folder = os.path.join(cwd, frame.get("cwd") or "")
        try:
            processes.set_mark(self._last_mark)
            process = Popen(
                argv,
                cwd=folder,
                env=environment,
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except (OSError, ValueError, TypeError) as error:
            end_link(link)
            return f"{type(error).__name__}: {error}"[:_REASON_LIMIT]
        finally:
            processes.clear_mark()
        linux.offer_to_oom_killer(process.pid)
        command = Command(number, self._last_mark, process, link)
        self._by_number[number] = command
        hello = {"op": "hello", "role": "process", "process": number}
        command.backlog.extend(packets(encode(hello)))
        self._watch(link.fileno(), lambda: self._on_link(command))
        for pipe in command.pipes:
            os.set_blocking(pipe.fd, False)
            self._watch_pipe(command, pipe)
        self._push(command)
        return ""

    def kill(self, number: object) -> None:
        """End a process and everything it started."""
        command = self._by_number.get(number)
        if command is not None:
            self._reaped(processes.end_marked(command.mark))

    def kill_all(self) -> None:
        """Nobody will ever hear of them: end them and their links."""
        for command in list(self._by_number.values()):
            if not command.ended:
                self._reaped(processes.end_marked(command.mark))
                command.process.returncode = -9
            self._forget(command)

    def note_ended(self, statuses: dict[int, int]) -> None:
        """Tell the host of those of its processes that are among the dead."""
        for command in list(self._by_number.values()):
            status = statuses.get(command.process.pid)
            if status is not None and not command.ended:
                command.end(status)
                self._push(command)

    def _on_link(self, command: Command) -> None:
        """The host never says anything here: it hung up, or the event was an older link's."""
        if not self._has_hung_up(command):
            return
        if command.ended:
            self._forget(command)
        else:
            self.kill(command.number)
            self._forget(command)

    def _forget(self, command: Command) -> None:
        self._by_number.pop(command.number, None)
        self._unwatch(command.link.fileno())
        for pipe in command.pipes:
            self._unwatch(pipe.fd)
        command.process.stdout.close()
        command.process.stderr.close()
        end_link(command.link)

    def _watch_pipe(self, command: Command, pipe: Pipe) -> None:
        self._watch(pipe.fd, lambda: self._on_output(command, pipe))

    def _on_output(self, command: Command, pipe: Pipe) -> None:
        try:
            if not command.take(pipe):
                self._unwatch(pipe.fd)
        except BlockingIOError:
            return
        self._push(command)

    def _push(self, command: Command) -> None:
        """Send what waits. While the link is full nothing is read, so that nothing piles up."""
        blocked = not command.push()
        if blocked == command.blocked:
            return
        command.blocked = blocked
        self._unwatch(command.link.fileno())
        if blocked:
            for pipe in command.pipes:
                self._unwatch(pipe.fd)
            self._watch(
                command.link.fileno(), lambda: self._on_writable(command), EPOLLIN | EPOLLOUT
            )
            return
        self._watch(command.link.fileno(), lambda: self._on_link(command))
        for pipe in command.pipes:
            self._watch_pipe(command, pipe)

    def _on_writable(self, command: Command) -> None:
        if self._has_hung_up(command):
            self._on_link(command)
        else:
            self._push(command)

    def _has_hung_up(self, command: Command) -> bool:
        try:
            return command.link.recv(1, MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True
