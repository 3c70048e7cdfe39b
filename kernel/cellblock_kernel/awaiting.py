"""Runs cells that use top-level await, all on one event loop.

It never imports asyncio before a cell needs it and never runs the loop between cells.
Tasks that a cell leaves behind wait for the next cell that awaits.
"""

from __future__ import annotations

from os import fstat

from cellblock_kernel import trusted
from cellblock_kernel.private import BUILTINS as __builtins__  # noqa: F401

_CANCEL_SECS = 1.0


class Awaiting:
    """Holds the event loop."""

    def __init__(self) -> None:
        """The loop is made when it is needed."""
        self._loop: object = None

    def run(self, coroutine: object) -> object:
        """Run one cell's coroutine to its end; an interrupt cancels it."""
        asyncio = trusted.load("asyncio")
        if not self._usable():
            self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(coroutine)
        try:
            return self._loop.run_until_complete(task)
        except BaseException:
            if not task.done():
                task.cancel()
                self._loop.run_until_complete(asyncio.wait([task], timeout=_CANCEL_SECS))
            raise

    def _usable(self) -> bool:
        """User code may have closed the loop, or its descriptors."""
        if self._loop is None or self._loop.is_closed() or self._loop.is_running():
            return False
        try:
            fstat(self._loop._selector.fileno())
            fstat(self._loop._ssock.fileno())
        except (OSError, ValueError, AttributeError):
            return False
        return True
