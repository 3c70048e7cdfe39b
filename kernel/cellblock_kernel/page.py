"""The memory that supervisor and worker share: a few words and the text not yet sent.

It never holds what the supervisor relies on: the worker may write any nonsense into it.
Each word has one writer, so that no lock is needed.
"""

from __future__ import annotations

from mmap import mmap

from cellblock_kernel.private import BUILTINS as __builtins__  # noqa: F401

# Written by the worker.
RUNNING = 0  # the execution under way, 0 between two
LIMIT = 1  # its max_output_bytes
PENDING = 2  # bytes of text that wait in `text`, kept there so that a dying worker loses none
PENDING_STREAM = 3  # which stream they belong to
# Written by the supervisor.
BUSY = 4  # 1 from before it reads a pipe until what it read is on the link
HELD = 5  # 1 while it holds output that came between two executions
CUT = 6  # the execution whose output it had to cut
ROUND = 7  # grows each time something it read is on the link, before BUSY is cleared
TAKEN = 8  # bytes of the stdout pipe that are on the link; the next word counts the stderr pipe

TEXT_SIZE = 8_192
_TEXT_OFFSET = 4_096
STREAMS = ("stdout", "stderr")


class Page:
    """One page per worker, made before the fork."""

    def __init__(self) -> None:
        """Map fresh, zeroed, shared memory."""
        self._memory = mmap(-1, _TEXT_OFFSET + TEXT_SIZE)
        whole = memoryview(self._memory)
        self.words = whole[:_TEXT_OFFSET].cast("Q")
        self.text = whole[_TEXT_OFFSET:]

    def pending(self) -> tuple[str, str]:
        """Stream and text that the worker had not sent yet; for use after its death."""
        size = min(self.words[PENDING], TEXT_SIZE)
        stream = STREAMS[self.words[PENDING_STREAM] & 1]
        return stream, str(self.text[:size], "utf-8", "replace")

    def close(self) -> None:
        """Give the memory back."""
        self.words.release()
        self.text.release()
