"""Forwards what the worker's processes print into the captured descriptors, for the supervisor.

It never blocks and never keeps more than one read and 64 KiB of output between two executions.
While BUSY is 0 and a pipe is empty, everything printed into it is on the link, held, or cut.
"""

from __future__ import annotations

import os
from _codecs import utf_8_decode
from _collections import deque
from _socket import MSG_DONTWAIT, MSG_NOSIGNAL
from _socket import socket as Socket

from cellblock_kernel import page as shared
from cellblock_kernel.frames import TEXT_PIECE, stream_packet
from cellblock_kernel.private import BUILTINS as __builtins__  # noqa: F401

HELD_LIMIT_BYTES = 65_536
READ_SIZE = 65_536
_FINAL_DRAIN_BYTES = 1_048_576


class Pipe:
    """The read end of one captured stream, with its decoder."""

    def __init__(self, fd: int, index: int) -> None:
        """`index` is the stream's place in `page.STREAMS`."""
        self.fd = fd
        self.index = index
        self.stream = shared.STREAMS[index]
        self._rest = b""

    def read(self) -> tuple[int, str]:
        """How many bytes there were, and their text; a split character waits for its other half."""
        data = os.read(self.fd, READ_SIZE)
        text, used = utf_8_decode(self._rest + data, "replace", not data)
        self._rest = (self._rest + data)[used:]
        return len(data), text

    def rest(self) -> str:
        """The half character that will never be completed."""
        text, self._rest = utf_8_decode(self._rest, "replace", True)[0], b""
        return text


class Relay:
    """Brings text to the cell link, or holds it until the next execution."""

    def __init__(self, page: shared.Page) -> None:
        """Start with no link; text that comes meanwhile is held."""
        self.link: Socket | None = None
        self._page = page
        self._held: deque[tuple[str, str]] = deque()
        self._held_bytes = 0
        self._backlog: deque[tuple[str, str]] = deque()
        self._execution = 0
        self._room = 0
        self._taken = [0, 0]
        self._round = 0

    @property
    def blocked(self) -> bool:
        """True while the host reads too slowly and text waits for the link."""
        return bool(self._backlog)

    def pump(self, pipe: Pipe) -> bool:
        """Forward what is in the pipe now; False once it has ended."""
        self._page.words[shared.BUSY] = 1
        count, text = pipe.read()
        self._taken[pipe.index] += count
        self.deliver(pipe.stream, text)
        return count > 0

    def deliver(self, stream: str, text: str) -> None:
        """Send `text` in pieces that fit a packet each."""
        for start in range(0, len(text), TEXT_PIECE):
            self._backlog.append((stream, text[start : start + TEXT_PIECE]))
        self.push()

    def push(self) -> None:
        """Send what waits, as far as the link takes it."""
        running = self._page.words[shared.RUNNING]
        if running == 0:
            self._hold()
            return
        self.release_held()
        while self._backlog:
            stream, text = self._backlog[0]
            text = self._within_limit(running, text)
            if text and not self._send(stream_packet(running, stream, text)):
                self._room += len(text.encode("utf-8", "replace"))
                return
            self._backlog.popleft()
        self._settled()

    def release_held(self) -> None:
        """Put what came between two executions before what comes now."""
        if not self._held:
            return
        self._backlog.extendleft(reversed(self._held))
        self._held.clear()
        self._held_bytes = 0
        self._page.words[shared.BUSY] = 1
        self._page.words[shared.HELD] = 0

    def final_drain(self, pipes: list[Pipe]) -> None:
        """After the worker's death: all that is left, without waiting for anything."""
        stream, text = self._page.pending()
        self.deliver(stream, text)
        for pipe in pipes:
            self._drain_pipe(pipe)

    def _drain_pipe(self, pipe: Pipe) -> None:
        total = 0
        while total < _FINAL_DRAIN_BYTES:
            try:
                count, text = pipe.read()
            except OSError:
                break
            self.deliver(pipe.stream, text)
            total += count
            if count == 0:
                break
        self.deliver(pipe.stream, pipe.rest())

    def _hold(self) -> None:
        for stream, text in self._backlog:
            self._held.append((stream, text))
            self._held_bytes += len(text.encode("utf-8", "replace"))
        self._backlog.clear()
        while self._held_bytes > HELD_LIMIT_BYTES:
            self._held_bytes -= len(self._held.popleft()[1].encode("utf-8", "replace"))
        if self._held:
            self._page.words[shared.HELD] = 1
        self._settled()

    def _settled(self) -> None:
        """Tell the worker how far we are, from our own counts: it may have spoilt the page."""
        words = self._page.words
        self._round += 1
        words[shared.TAKEN], words[shared.TAKEN + 1] = self._taken
        words[shared.ROUND] = self._round
        words[shared.BUSY] = 0

    def _within_limit(self, running: int, text: str) -> str:
        if running != self._execution:
            self._execution = running
            self._room = self._page.words[shared.LIMIT]
        data = text.encode("utf-8", "replace")
        if len(data) > self._room:
            self._page.words[shared.CUT] = running
            text = str(data[: self._room], "utf-8", "ignore")
            data = data[: self._room]
        self._room -= len(data)
        return text

    def _send(self, packet: bytes) -> bool:
        """False if the link is full; a link that is gone swallows the packet."""
        if self.link is None:
            return True
        try:
            self.link.send(packet, MSG_DONTWAIT | MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True
