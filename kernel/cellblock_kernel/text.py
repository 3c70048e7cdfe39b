"""The objects that user code finds as sys.stdout, sys.stderr and sys.stdin.

They never touch a terminal or a descriptor themselves: text goes to `Output`, input is refused.
Closing them does no harm.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from io import BufferedIOBase, BytesIO, TextIOBase

from cellblock_kernel.output import Output
from cellblock_kernel.page import STREAMS
from cellblock_kernel.private import BUILTINS as __builtins__  # noqa: F401

NO_INPUT = (
    "cells have no terminal, so input() and getpass() cannot ask anybody: "
    "assign the value in code, or read it from a file in the workspace"
)


class CellBytes(BufferedIOBase):
    """`sys.stdout.buffer`: bytes join the text in order."""

    def __init__(self, text: CellText) -> None:
        """Write through to `text`."""
        self._text = text
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def write(self, data: object) -> int:
        """Decode and pass on; a split character waits for its other half."""
        data = bytes(data)
        self._text.write(self._decoder.decode(data))
        return len(data)

    def flush(self) -> None:
        """Send waiting text now."""
        self._text.flush()

    def fileno(self) -> int:
        """The captured descriptor."""
        return self._text.fileno()

    def writable(self) -> bool:
        """Always."""
        return True

    def close(self) -> None:
        """Flush only: the stream outlives the cell that closes it."""
        self.flush()


class CellText(TextIOBase):
    """`sys.stdout` or `sys.stderr` of a cell."""

    encoding = "utf-8"
    errors = "replace"
    newlines = None
    line_buffering = True
    write_through = False
    mode = "w"

    def __init__(self, output: Output, index: int) -> None:
        """`index` 0 is stdout, 1 is stderr."""
        self._output = output
        self._index = index
        self.name = f"<{STREAMS[index]}>"
        self.buffer = CellBytes(self)

    def write(self, text: str) -> int:
        """Take text in; lines are sent at once as a rule."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self._output.write(self._index, text)
        return len(text)

    def writelines(self, lines: object) -> None:
        """Write each of `lines`."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Send waiting text now."""
        self._output.flush()

    def fileno(self) -> int:
        """The captured descriptor: C code and children write there."""
        return self._index + 1

    def isatty(self) -> bool:
        """Never a terminal."""
        return False

    def writable(self) -> bool:
        """Always."""
        return True

    def reconfigure(self, **_options: object) -> None:
        """Accepted and ignored: the link is UTF-8."""

    def close(self) -> None:
        """Flush only: the stream outlives the cell that closes it."""
        self.flush()


class NoInput(TextIOBase):
    """`sys.stdin` of a cell: empty, and a clear refusal when a line is asked for."""

    encoding = "utf-8"
    errors = "strict"
    name = "<stdin>"
    mode = "r"

    def __init__(self) -> None:
        """There is nothing to read."""
        self.buffer = BytesIO()

    def read(self, _size: int = -1) -> str:
        """The end of the file, as from /dev/null."""
        return ""

    def readline(self, _size: int = -1) -> str:
        """Refuse: somebody wants an answer that will never come."""
        raise EOFError(NO_INPUT)

    def __next__(self) -> str:
        """No lines."""
        raise StopIteration

    def fileno(self) -> int:
        """/dev/null."""
        return 0

    def readable(self) -> bool:
        """True, though there is nothing."""
        return True

    def close(self) -> None:
        """Ignored, since exit() closes sys.stdin."""
