"""Reaps and ends processes on the supervisor's behalf.

It never signals anything but its own descendants, and uses kill(-1) only as PID 1.
When `end_all_others` returns, nothing of the old state runs any more (within its deadline).
"""

from __future__ import annotations

import os
from _signal import SIGKILL, SIGSTOP
from resource import RLIMIT_MSGQUEUE, getrlimit, prlimit, setrlimit
from time import monotonic, sleep

from cellblock_kernel.private import BUILTINS as __builtins__  # noqa: F401

# What a process that the host asked for is known by, and all that it starts, whatever they do to
# their environment, session and parents: a soft limit on message queues, which sandboxes lack.
_UNMARKED, _HARD = getrlimit(RLIMIT_MSGQUEUE)
_MARKS = 500_000 if _HARD < 0 else min(_HARD, 500_000)


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


def end_all_others(within_secs: float = 3.0, spare_visitors: bool = False) -> dict[int, int]:
    """SIGKILL to every other process of the sandbox, again until none is left; what was reaped.

    Visitors came in from the host, not from user code; a bridge that carries our own links is one.
    """
    ended: dict[int, int] = {}
    deadline = monotonic() + within_secs
    kill_round = _kill_as_init if os.getpid() == 1 else _kill_descendants
    if spare_visitors:
        kill_round = _kill_all_but_visitors
    while kill_round() and monotonic() < deadline:
        ended.update(reap())
        sleep(0.0005)
    ended.update(reap())
    return ended


def next_mark(last: int) -> int:
    """Another mark than the one before; they come round after hundreds of thousands."""
    return last % _MARKS + 1


def set_mark(mark: int) -> None:
    """What is started from now on carries the mark from its first moment."""
    setrlimit(RLIMIT_MSGQUEUE, (mark, _HARD))


def clear_mark() -> None:
    """What is started from now on carries none."""
    setrlimit(RLIMIT_MSGQUEUE, (_UNMARKED, _HARD))


def end_marked(mark: int) -> dict[int, int]:
    """SIGKILL to one process of the host and all that it started, until none is left."""
    return _end_while_found(lambda: [pid for pid in _others() if _mark_of(pid) == mark])


def end_all_but(marks: set[int]) -> dict[int, int]:
    """SIGKILL to everything but visitors and what carries one of the marks; what was reaped."""
    return _end_while_found(lambda: [pid for pid in _others() if _mark_of(pid) not in marks])


def _end_while_found(look: object, within_secs: float = 3.0) -> dict[int, int]:
    ended: dict[int, int] = {}
    deadline = monotonic() + within_secs
    while monotonic() < deadline:
        found = look()
        if not found:
            break
        for number in (SIGSTOP, SIGKILL):
            _signal_all(found, number)
        ended.update(reap())
        sleep(0.0005)
    return ended


def _others() -> list[str]:
    """Every process of the sandbox but this one and visitors, who have no parent in here."""
    own = str(os.getpid())
    if own != "1":
        return [str(pid) for pid in _descendants(int(own))]
    names = [name for name in os.listdir("/proc") if name.isdigit() and name != own]
    return [name for name in names if _parent_of(name) != 0]


def _signal_all(pids: list[str], number: int) -> None:
    for pid in pids:
        try:
            os.kill(int(pid), number)
        except OSError:
            pass


def _mark_of(pid: str) -> int:
    try:
        return prlimit(int(pid), RLIMIT_MSGQUEUE)[0]
    except OSError:
        return _UNMARKED


def _kill_as_init() -> bool:
    """One kill for all; zombies count until they are reaped."""
    try:
        os.kill(-1, SIGKILL)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _kill_all_but_visitors() -> bool:
    """Whoever came in by `docker exec` has no parent in here; everybody else goes."""
    found: list[str] = []
    # Stopped first: what forks faster than one by one can be killed would outlive every round.
    for number in (SIGSTOP, SIGKILL):
        found = _others()
        _signal_all(found, number)
    return bool(found)


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
