"""Remembers the source of recent cells, so that tracebacks and inspect can show it.

It never imports linecache before somebody needs it, because that costs a cold start a millisecond.
At most `KEPT_CELLS` cells are remembered.
"""

from __future__ import annotations

import sys
from _collections import deque

from cellblock_kernel import trusted
from cellblock_kernel.private import BUILTINS as __builtins__  # noqa: F401

KEPT_CELLS = 500


class Sources:
    """The cells by file name, in linecache once that is loaded."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._kept: deque[tuple[str, str]] = deque()
        self._waiting: deque[tuple[str, str]] = deque()

    def add(self, filename: str, source: str) -> None:
        """Remember one cell before it runs."""
        cell = (filename, source)
        self._kept.append(cell)
        self._waiting.append(cell)
        cache = _cache()
        if len(self._kept) > KEPT_CELLS:
            forgotten = self._kept.popleft()
            if self._waiting[0] is forgotten:
                self._waiting.popleft()
            if cache is not None:
                cache.pop(forgotten[0], None)
        # Only a cell that imports something can come to look into linecache by itself.
        if cache is not None or "import" in source:
            self.publish()

    def publish(self) -> None:
        """Put what is remembered where traceback looks for it."""
        cache = trusted.load("linecache").cache
        for filename, source in self._waiting:
            lines = source.splitlines(True)
            if lines and not lines[-1].endswith("\n"):
                lines[-1] += "\n"
            # No modification time: linecache then never checks the entry against a file.
            cache[filename] = (len(source), None, lines, filename)
        self._waiting.clear()


def _cache() -> dict[str, object] | None:
    linecache = sys.modules.get("linecache")
    return getattr(linecache, "cache", None)
