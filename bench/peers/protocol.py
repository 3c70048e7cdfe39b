"""How the benchmark speaks to a peer: one word per line in, the nanoseconds it took per line out.

The peer takes the time itself. Knows nothing of any peer. A peer's
own set-up and cleaning up are never timed.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from importlib.metadata import version


def timed(work: Callable[[], object]) -> int:
    """Nanoseconds that the work takes."""
    started = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - started


def serve(works: dict[str, Callable[[], int]], packages: list[str]) -> None:
    """Say `ready` and the versions of the packages, then answer each word until the input ends.

    An answer is a number, or `error` and a reason.
    """
    # Whatever a peer prints must not pass for an answer.
    answers = sys.stdout
    sys.stdout = sys.stderr
    versions = [f"{package} {version(package)}" for package in packages]
    print("ready", ", ".join(versions), file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer = str(works[line.strip()]())
        except Exception as error:
            traceback.print_exc()
            answer = f"error {type(error).__name__}: {error}".replace("\n", " ")
        print(answer, file=answers, flush=True)


def expect(found: object, wanted: object) -> None:
    """A peer that answers something else has not done the work."""
    if found != wanted:
        raise AssertionError(f"expected {str(wanted)[:60]!r}, got {str(found)[:200]!r}")
