"""Reaps and ends processes on the supervisor's behalf.

It never signals anything but its own descendants, and uses kill(-1) only as PID 1.
When `end_all_others` returns, nothing of the old state runs any more (within its deadline).
"""

from __future__ import annotations

import os
from _signal import SIGKILL
from time import monotonic, sleep

from cellblock_kernel.private import BUILTINS as __builtins__  # noqa: F401


def reap() -> dict[int, int]:
    """Collect every child that has ended: wait status by pid."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def end_all_others(within_secs: float = 3.0) -> dict[int, int]:
    """SIGKILL to every other process of the sandbox, again until none is left; what was reaped."""
    ended: dict[int, int] = {}
    deadline = monotonic() + within_secs
    kill_round = _kill_as_init if os.getpid() == 1 else _kill_descendants
    while kill_round() and monotonic() < deadline:
        ended.update(reap())
        sleep(0.0005)
    ended.update(reap())
    return ended


def _kill_as_init() -> bool:
    """One kill for all; zombies count until they are reaped."""
    try:
        os.kill(-1, SIGKILL)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _kill_descendants() -> bool:
    """Outside a pid namespace of its own the kernel may only touch its own offspring."""
    found = False
    for pid in _descendants(os.getpid()):
        found = True
        try:
            os.kill(pid, SIGKILL)
        except OSError:
            pass
    return found


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            children.setdefault(_parent_of(name), []).append(int(name))
    found = list(children.get(root, ()))
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def _parent_of(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in brackets may hold anything; the fields count from its last bracket.
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0
