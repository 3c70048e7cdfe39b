"""Decides when SIGINT may raise KeyboardInterrupt: only while user code runs in the main thread.

It never lets an interrupt escape into the kernel's own loop or tear a packet of output apart.
After `call` has returned or raised, no interrupt raises until the next `call`.
"""

from __future__ import annotations

from _signal import SIGINT, getsignal, signal
from _thread import get_ident
from types import CodeType, FrameType

from cellblock_kernel.private import BUILTINS as __builtins__  # noqa: F401

_FRAMES_TO_CHECK = 16


class Guard:
    """Holds the SIGINT handler of the worker."""

    def __init__(self) -> None:
        """Nothing may be interrupted yet."""
        self._armed = False
        self._main_thread = get_ident()
        self._call_code = self.call.__func__.__code__
        self._critical: set[CodeType] = set()
        self._handler = self._on_sigint
        self.pending = False

    def protect(self, *functions: object) -> None:
        """Name functions that must not be torn apart; each calls `release` when it is through."""
        self._critical.update(function.__code__ for function in functions)

    def install(self) -> None:
        """Take SIGINT back if user code gave it to somebody else."""
        if getsignal(SIGINT) is not self._handler:
            signal(SIGINT, self._handler)

    def call(self, function: object, *arguments: object) -> object:
        """Run `function`, which may run user code, so that SIGINT can stop it."""
        self.pending = False
        self._armed = True
        try:
            return function(*arguments)
        finally:
            self._armed = False

    def release(self) -> None:
        """Raise an interrupt that came while a protected function ran."""
        if self.pending and get_ident() == self._main_thread:
            self.pending = False
            if self._armed:
                raise KeyboardInterrupt

    def _on_sigint(self, _signum: int, frame: FrameType | None) -> None:
        if not self._armed:
            return
        caller, depth = frame, 0
        while caller is not None and depth < _FRAMES_TO_CHECK:
            if caller.f_code in self._critical:
                self.pending = True
                return
            caller, depth = caller.f_back, depth + 1
        if frame is not None and frame.f_code is self._call_code:
            # At the edge of user code: a second interrupt would hit whoever handles this one.
            self._armed = False
        raise KeyboardInterrupt
