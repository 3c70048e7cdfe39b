"""The few Linux calls that Python has no name for.

It never raises: each call is a hardening or a nicety that an odd sandbox may refuse.
Nothing here keeps state.
"""

from __future__ import annotations

from cellblock_kernel.private import BUILTINS as __builtins__  # noqa: F401

_SET_DUMPABLE = 4
_SET_CHILD_SUBREAPER = 36
FIONREAD = 0x541B


def _prctl(option: int, value: int) -> None:
    try:
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except Exception:  # no ctypes or no prctl: run on without it
        pass


def set_dumpable(value: int) -> None:
    """0 hides this process's memory and descriptors from others of its uid, 1 shows them."""
    _prctl(_SET_DUMPABLE, value)


def become_subreaper() -> None:
    """Inherit orphaned descendants, as PID 1 does by nature."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def offer_to_oom_killer(pid: int | str = "self") -> None:
    """Make a process the first that the kernel ends when memory is short."""
    try:
        with open(f"/proc/{pid}/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass
