"""Sends what a cell produces: text of sys.stdout and sys.stderr, displays, the end of the cell.

It never lets a stream frame overtake what was printed into the captured descriptors before it.
Text that is not on the link yet lies in the shared page, so that a dying worker loses none of it.
"""

from __future__ import annotations

from _collections import deque
from _thread import RLock
from fcntl import ioctl
from os import getpid, write
from time import monotonic, sleep

from cellblock_kernel import page as shared
from cellblock_kernel.descriptors import Kept
from cellblock_kernel.frames import FRAME_LIMIT, encode, stream_packet
from cellblock_kernel.guard import Guard
from cellblock_kernel.link import Link
from cellblock_kernel.linux import FIONREAD
from cellblock_kernel.private import BUILTINS as __builtins__  # noqa: F401

_SETTLE_SECS = 0.25
_NAP_SECS = 0.00005
_EAGER_FLUSHES = 50
_LAZY_FLUSH_SECS = 0.005
_LATE_LIMIT_BYTES = 65_536
DISPLAY_LIMIT_BYTES = 16 * 1_048_576

_EMPTY = b"\0\0\0\0"


class Output:
    """Everything the worker says about one execution, in order."""

    def __init__(self, link: Link, page: shared.Page, pipes: list[Kept], guard: Guard) -> None:
        """`pipes` are the write ends of the captured descriptors."""
        self._link = link
        self._words = page.words
        self._text = page.text
        self._pipes = pipes
        self._guard = guard
        self._pid = getpid()
        self._fork_pid = 0
        self._fork_text = [b"", b""]
        self._lock = RLock()
        self._late: deque[tuple[int, bytes]] = deque()
        self._late_bytes = 0
        self._execution = 0
        self._room = 0
        self._display_room = 0
        self._eager = 0
        self._taken_at_start = (0, 0)
        self._flushed_at = 0.0
        self.truncated = False
        guard.protect(Output.write, Output.flush, Output.display, Output.cut)

    @property
    def in_worker(self) -> bool:
        """False in a process that user code forked."""
        return getpid() == self._pid

    def begin(self, execution: int, limit_bytes: int) -> None:
        """Start an execution; what came since the last one goes first."""
        words = self._words
        self._room = limit_bytes
        self._display_room = DISPLAY_LIMIT_BYTES
        self._eager = _EAGER_FLUSHES
        self._taken_at_start = (words[shared.TAKEN], words[shared.TAKEN + 1])
        self.truncated = False
        words[shared.LIMIT] = limit_bytes
        words[shared.RUNNING] = execution
        if words[shared.HELD]:
            self._link.poke(b"F")
            self._wait(lambda: not words[shared.HELD])
        with self._lock:
            self._execution = execution
            late, self._late, self._late_bytes = self._late, deque(), 0
            for stream, data in late:
                self._append(stream, data)

    def write(self, stream: int, text: str) -> None:
        """Text for stream 0 (stdout) or 1 (stderr), from any thread or forked child."""
        data = text.encode("utf-8", "replace")
        if getpid() != self._pid:
            self._write_in_fork(stream, data)
            return
        with self._lock:
            if self._execution == 0:
                self._keep_for_later(stream, data)
            elif not self.truncated:
                self._append(stream, data)
                if self._words[shared.PENDING] and "\n" in text and self._line_is_due():
                    self._flush()
        if self._guard.pending:
            self._guard.release()

    def flush(self) -> None:
        """Put waiting text on the link now."""
        if getpid() != self._pid:
            self._flush_in_fork()
            return
        with self._lock:
            if self._execution:
                self._flush()
        if self._guard.pending:
            self._guard.release()

    def display(self, bundle: dict[str, str]) -> None:
        """Send a display frame; nothing between two executions."""
        with self._lock:
            payload = encode({"op": "display", "id": self._execution, "data": bundle})
            self._display_room -= len(payload)
            if self._execution and self._display_room < 0:
                self.truncated = True
            elif self._execution and len(payload) <= FRAME_LIMIT:
                self._flush()
                self._settle()
                self._link.send_frame(payload)
        if self._guard.pending:
            self._guard.release()

    def cut(self, text: str) -> str:
        """As much of a result's text as the limit leaves room for."""
        if len(text) * 4 <= self._room:
            return text
        with self._lock:
            self._flush()
        data = text.encode("utf-8", "replace")
        if len(data) > self._room:
            self.truncated = True
            text = str(data[: self._room], "utf-8", "ignore")
        if self._guard.pending:
            self._guard.release()
        return text

    def finish(self, done: object) -> None:
        """Send what waits, then the frame that `done(execution, truncated)` makes, and go idle."""
        words = self._words
        with self._lock:
            self._flush()
            self._settle()
            execution, self._execution = self._execution, 0
            words[shared.RUNNING] = 0
            # The supervisor may just be sending for this execution; what it reads later it holds.
            if words[shared.BUSY]:
                self._wait(lambda: not words[shared.BUSY])
            truncated = self.truncated or words[shared.CUT] == execution
            self._link.send_frame(done(execution, truncated))

    def _write_in_fork(self, stream: int, data: bytes) -> None:
        """Whole lines into the captured descriptor, so that children do not mix theirs."""
        if self._fork_pid != getpid():
            self._fork_pid, self._fork_text = getpid(), [b"", b""]
        data = self._fork_text[stream] + data
        end = len(data) if len(data) > shared.TEXT_SIZE else data.rfind(b"\n") + 1
        self._fork_text[stream] = data[end:]
        write_all(stream + 1, data[:end])

    def _flush_in_fork(self) -> None:
        if self._fork_pid == getpid():
            for stream, data in enumerate(self._fork_text):
                self._fork_text[stream] = b""
                write_all(stream + 1, data)

    def _append(self, stream: int, data: bytes) -> None:
        """Add to the waiting text, which belongs to one stream and fits one packet."""
        words = self._words
        size = words[shared.PENDING]
        if size and words[shared.PENDING_STREAM] != stream:
            self._flush()
            size = 0
        words[shared.PENDING_STREAM] = stream
        if size + len(data) > shared.TEXT_SIZE:
            self._flush()
            size = 0
            while len(data) > shared.TEXT_SIZE and not self.truncated:
                # Not within a character: its first byte is the last that is no continuation.
                end = shared.TEXT_SIZE
                while data[end] & 0xC0 == 0x80:
                    end -= 1
                self._text[:end] = data[:end]
                words[shared.PENDING] = end
                self._flush()
                data = data[end:]
            if self.truncated:
                return
        end = size + len(data)
        self._text[size:end] = data
        words[shared.PENDING] = end

    def _flush(self) -> None:
        words = self._words
        size = words[shared.PENDING]
        if not size:
            return
        if size > self._room:
            self.truncated = True
        text = str(self._text[: min(size, self._room)], "utf-8", "ignore")
        self._room -= min(size, self._room)
        self._settle()
        if text:
            stream = shared.STREAMS[words[shared.PENDING_STREAM]]
            self._link.send(stream_packet(self._execution, stream, text))
        words[shared.PENDING] = 0
        self._eager -= 1
        self._flushed_at = monotonic()

    def _line_is_due(self) -> bool:
        """Lines go out at once, unless a loop prints many and nothing else writes between them."""
        words = self._words
        return (
            self._eager > 0
            or (words[shared.TAKEN], words[shared.TAKEN + 1]) != self._taken_at_start
            or monotonic() - self._flushed_at > _LAZY_FLUSH_SECS
        )

    def _keep_for_later(self, stream: int, data: bytes) -> None:
        self._late.append((stream, data[-_LATE_LIMIT_BYTES:]))
        self._late_bytes += len(self._late[-1][1])
        while self._late_bytes > _LATE_LIMIT_BYTES:
            self._late_bytes -= len(self._late.popleft()[1])

    def _settle(self) -> None:
        """Wait until the supervisor has sent what is in the pipes at this moment."""
        out, err = self._pipes
        try:
            waiting = (ioctl(out.fd, FIONREAD, _EMPTY), ioctl(err.fd, FIONREAD, _EMPTY))
        except OSError:
            out.mend()
            err.mend()
            waiting = (ioctl(out.fd, FIONREAD, _EMPTY), ioctl(err.fd, FIONREAD, _EMPTY))
        words = self._words
        if waiting == (_EMPTY, _EMPTY) and not words[shared.BUSY]:
            return
        # What the supervisor had already read when we looked counts as sent only after its round.
        round_then = words[shared.ROUND]
        self._wait(lambda: not words[shared.BUSY] or words[shared.ROUND] != round_then)
        # Too high at worst, and then empty pipes end the wait; never too low.
        goals = [
            words[shared.TAKEN + index] + int.from_bytes(size, "little")
            for index, size in enumerate(waiting)
        ]

        def all_sent() -> bool:
            if all(words[shared.TAKEN + index] >= goal for index, goal in enumerate(goals)):
                return True
            empty = all(ioctl(pipe.fd, FIONREAD, _EMPTY) == _EMPTY for pipe in self._pipes)
            # BUSY last: it is set before a pipe is emptied and cleared after its text was sent.
            return empty and not words[shared.BUSY]

        self._wait(all_sent)

    def _wait(self, ready: object) -> None:
        """Nap until `ready()`, but no longer than a moment: the supervisor may be held up."""
        deadline = monotonic() + _SETTLE_SECS
        while not ready() and monotonic() < deadline:
            sleep(_NAP_SECS)


def write_all(fd: int, data: bytes) -> None:
    """Write to a descriptor, and give up silently if it is closed."""
    try:
        while data:
            data = data[write(fd, data) :]
    except OSError:
        pass
