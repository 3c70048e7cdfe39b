"""Keeps the worker's descriptors alive whatever user code closes: a high number and a spare each.

It never trusts a number: a descriptor is what its device and inode say.
After `mend`, 0, 1, 2 and the kept ones are what they were, or the worker has ended with code 70.
"""

from __future__ import annotations

from fcntl import F_DUPFD_CLOEXEC, fcntl
from os import _exit, close, dup2, fstat
from resource import RLIMIT_NOFILE, getrlimit

from cellblock_kernel.private import BUILTINS as __builtins__  # noqa: F401

NOTHING_LEFT = 70
_FIRST_CHOICE = 900
_SPARE_CHOICE = 600


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        found = fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _duplicate(fd: int, at_least: int) -> int:
    """A copy at a high number, or `fd` itself when user code holds every descriptor there is."""
    try:
        return fcntl(fd, F_DUPFD_CLOEXEC, at_least)
    except OSError:
        return fd


def _close_quietly(fd: int) -> None:
    try:
        close(fd)
    except OSError:
        pass


class Kept:
    """One descriptor at a high number, with a spare at another."""

    def __init__(self, fd: int) -> None:
        """Take `fd` over: it moves to its new places and the old number is closed."""
        soft, _hard = getrlimit(RLIMIT_NOFILE)
        room = soft if soft > 0 else _FIRST_CHOICE + 64
        self.identity = _identity(fd)
        self.fd = _duplicate(fd, min(_FIRST_CHOICE, room - 32))
        self._spare = _duplicate(fd, min(_SPARE_CHOICE, room - 64))
        if fd not in (self.fd, self._spare):
            close(fd)

    def mend(self) -> None:
        """Bring the descriptor back from its spare if user code closed or replaced it."""
        if _identity(self.fd) == self.identity:
            return
        if _identity(self._spare) != self.identity:
            _exit(NOTHING_LEFT)
        dup2(self._spare, self.fd, inheritable=False)

    def give_up(self) -> None:
        """Close both places, if they are still ours."""
        for fd in (self.fd, self._spare):
            if _identity(fd) == self.identity:
                _close_quietly(fd)


class Standard:
    """The descriptors 0, 1 and 2."""

    def __init__(self, sources: list[Kept]) -> None:
        """`sources` are null, stdout pipe and stderr pipe, in the order of their numbers."""
        self._sources = sources
        self.mend()

    def mend(self) -> None:
        """Point 0, 1 and 2 at their sources again."""
        for number, source in enumerate(self._sources):
            if _identity(number) != source.identity:
                source.mend()
                dup2(source.fd, number, inheritable=True)
