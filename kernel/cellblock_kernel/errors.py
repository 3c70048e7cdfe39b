"""Turns an exception into the `error` of a done frame, as the standard REPL would show it.

It never lets the exception's own methods break it, and never shows a frame of the kernel.
Name, value and traceback are bounded.
"""

from __future__ import annotations

import os

from cellblock_kernel import trusted
from cellblock_kernel.private import BUILTINS as __builtins__  # noqa: F401

VALUE_LIMIT = 20_000
TRACEBACK_LIMIT = 100_000
_FRAMES_EACH_END = 400
_KERNEL_DIR = os.path.dirname(os.path.abspath(__file__)) + os.sep


def describe(error: BaseException) -> dict[str, str]:
    """`name`, `value` and `traceback` of an exception; may run the exception's own code."""
    # First, because traceback would swallow the interrupt that ends an endless __str__.
    found = plain(error)
    try:
        found["traceback"] = shorten(_format(error), TRACEBACK_LIMIT)
    except Exception:  # hostile exceptions, patched modules, no memory
        pass
    return found


def plain(error: BaseException) -> dict[str, str]:
    """The same with no more than the last line of the traceback."""
    name = type.__getattribute__(type(error), "__name__")
    try:
        value = str(error)
    except Exception:  # __str__ is user code
        value = "<exception str() failed>"
    value = shorten(str.__str__(value), VALUE_LIMIT)
    return {
        "name": name,
        "value": value,
        "traceback": f"{name}: {value}\n" if value else name + "\n",
    }


def shorten(text: str, limit_bytes: int) -> str:
    """Keep the beginning and the end of a text that is too long."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit_bytes:
        return text
    half = limit_bytes // 2 - 40
    head, tail = str(data[:half], "utf-8", "ignore"), str(data[-half:], "utf-8", "ignore")
    return f"{head}\n... {len(data) - 2 * half} bytes left out ...\n{tail}"


def _format(error: BaseException) -> str:
    traceback = trusted.load("traceback")
    kind, trace = type(error), error.__traceback__
    # `compact` where known: without it every chained exception is kept twice.
    told = traceback.TracebackException(kind, error, trace, limit=-_FRAMES_EACH_END)
    if _longer_than(trace, _FRAMES_EACH_END):
        head = traceback.StackSummary.extract(
            traceback.walk_tb(trace), limit=_FRAMES_EACH_END, lookup_lines=False
        )
        told.stack = traceback.StackSummary.from_list([*head, *told.stack])
    _hide_kernel(told, traceback, set())
    if not told.stack and not (told.__cause__ or told.__context__):
        return "".join(told.format_exception_only())
    return "".join(told.format())


def _longer_than(trace: object, count: int) -> bool:
    while trace is not None and count >= 0:
        trace, count = trace.tb_next, count - 1
    return trace is not None


def _hide_kernel(told: object, traceback: object, seen: set[int]) -> None:
    """Take the kernel's frames, and asyncio's below them, out of a whole tree of exceptions."""
    if told is None or id(told) in seen:
        return
    seen.add(id(told))
    frames = list(told.stack or ())
    if frames and frames[0].filename.startswith(_KERNEL_DIR):
        cells = [i for i, frame in enumerate(frames) if frame.filename.startswith("<cell ")]
        frames = frames[cells[0] :] if cells else frames
    frames = [frame for frame in frames if not frame.filename.startswith(_KERNEL_DIR)]
    told.stack = traceback.StackSummary.from_list(frames)
    for other in (told.__cause__, told.__context__, *(getattr(told, "exceptions", None) or ())):
        _hide_kernel(other, traceback, seen)
