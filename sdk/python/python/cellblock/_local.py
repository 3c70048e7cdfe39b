"""Local mode: one core per process and settings, started on first use, ended at exit, and requests to it.

Nothing of it is shared with a fork's child: one whose parent had a core is told so, any other starts a core of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Optional

from . import _native
from ._exchange import Reply, Request, drain, reply_to
from ._patience import within
from .errors import (
    ConnectionFailedError,
    InvalidRequestError,
    RequestTimeoutError,
    UnavailableError,
)

HELPER = Path(__file__).with_name("_bin") / "cellblock"

Settings = dict[str, str]


def settings_of(given: Mapping[str, Any]) -> Settings:
    """Keyword arguments as the service reads settings. None means the default."""
    settings = {name: _text(value) for name, value in given.items() if value is not None}
    try:
        _native.check_settings(settings)
    except ValueError as error:
        raise InvalidRequestError(str(error), code="invalid_argument") from None
    return settings


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, (list, tuple, set, frozenset)):
        return ",".join(map(str, value))
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


class _Slot:
    """The place of one core. Its lock is held while the core starts, so that it starts once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.has_begun = False
        self.core: Optional[_native.Core] = None


_slots: dict[tuple[tuple[str, str], ...], _Slot] = {}
_pid = os.getpid()


def core_for(settings: Settings) -> _native.Core:
    """The running core for these settings; this may start it, which takes a moment."""
    slot = _slots.setdefault(tuple(sorted(settings.items())), _Slot())
    if slot.core is not None:
        return slot.core
    with slot.lock:
        if slot.core is None:
            _check_fork()
            _end_with_multiprocessing()
            slot.has_begun = True
            try:
                slot.core = _native.Core.start(settings, os.fspath(HELPER))
            except RuntimeError as error:
                raise UnavailableError(
                    f"the core cannot start in this process: {error}", code="unavailable"
                ) from None
    return slot.core


def stop_all() -> None:
    """Ends every core of this process with its sandboxes."""
    if os.getpid() != _pid:
        return
    for slot in list(_slots.values()):
        if slot.core is not None:
            slot.core.stop()
    _slots.clear()


def _end_with_multiprocessing() -> None:
    """Processes of multiprocessing end without `atexit`; they have something of their own."""
    util = sys.modules.get("multiprocessing.util")
    process = sys.modules.get("multiprocessing.process")
    if util is not None and process is not None and process.parent_process() is not None:
        util.Finalize(None, stop_all, exitpriority=0)


def _check_fork() -> None:
    """The locks of threads that a child does not have may be held for ever: no core could be trusted to run there."""
    if _parents_slots:
        raise UnavailableError(
            "this process was forked from one in which local mode was already used: use it after the fork only, "
            "start processes by multiprocessing's 'spawn', or use mode='remote'",
            code="unavailable",
        )


def _forget_after_fork() -> None:
    global _pid
    # Kept for ever: to free what belongs to threads that are not here would wait for them.
    _parents_slots.extend(slot for slot in _slots.values() if slot.has_begun)
    for slot in _slots.values():
        if slot.core is not None:
            # Else the parent's work root would look used for as long as this child lives.
            os.close(slot.core.lock_fd)
    _slots.clear()
    _pid = os.getpid()


_parents_slots: list[_Slot] = []
os.register_at_fork(after_in_child=_forget_after_fork)
atexit.register(stop_all)


class LocalTransport:
    """Requests to the core in this process: no socket, no HTTP, no key."""

    def __init__(self, settings: Settings, patience: float) -> None:
        self._settings = settings
        self._patience = patience
        self._core: Optional[_native.Core] = None
        self._core_pid = 0

    def _running(self) -> Optional[_native.Core]:
        return self._core if self._core_pid == os.getpid() else None

    def _start(self) -> _native.Core:
        core = core_for(self._settings)
        self._core, self._core_pid = core, os.getpid()
        return core

    def send(self, request: Request) -> Reply:
        """Asks and waits, without the interpreter lock."""
        core = self._running() or self._start()
        limit = self._patience + request.work_seconds
        with _translated(request):
            status, headers, body = core.request(
                request.method,
                request.target,
                list(request.headers.items()),
                request.fresh_body(),
                limit,
                request.sink is None,
            )
        if not isinstance(body, bytes):
            body = _read(body, request, status, limit)
        return reply_to(request, status, dict(headers), body)

    async def send_async(self, request: Request) -> Reply:
        """Asks without a thread."""
        core = self._running()
        if core is None:
            core = await asyncio.to_thread(self._start)
        limit = self._patience + request.work_seconds
        asked = _soon(
            core.request_soon,
            request.method,
            request.target,
            list(request.headers.items()),
            request.fresh_body(),
            request.sink is None,
        )
        with _translated(request):
            status, headers, body = await within(asked, limit)
        if not isinstance(body, bytes):
            body = await _read_async(body, request, status, limit)
        return reply_to(request, status, dict(headers), body)

    def is_started(self) -> bool:
        """Whether there is somebody to take leave of: no core is started for that."""
        return self._running() is not None

    def send_last(self, request: Request) -> None:
        """For a client that is gone. It does not wait: a collection may come in any thread, one of the core's too."""
        core = self._running()
        if core is not None:
            headers = list(request.headers.items())
            core.request_soon(
                request.method, request.target, headers, request.fresh_body(), True, _ignore
            )

    def close(self) -> None:
        """The core stays: it is the process's, not the client's."""

    async def close_async(self) -> None:
        """As `close`."""


def _ignore(value: Any, error: Optional[BaseException]) -> None:
    pass


def _read(body: _native.Body, request: Request, status: int, limit: float) -> bytes:
    sink = request.sink if status == 200 else None
    gathered: list[bytes] = []
    try:
        while True:
            with _translated(request):
                chunk = body.next(limit)
            if chunk is None:
                return b"".join(gathered)
            if sink is None:
                gathered.append(chunk)
            else:
                for _ in sink(chunk):
                    pass
    finally:
        body.close()


async def _read_async(body: _native.Body, request: Request, status: int, limit: float) -> bytes:
    sink = request.sink if status == 200 else None
    gathered: list[bytes] = []
    try:
        while True:
            with _translated(request):
                chunk = await within(_soon(body.next_soon), limit)
            if chunk is None:
                return b"".join(gathered)
            if sink is None:
                gathered.append(chunk)
            else:
                await drain(sink(chunk))
    finally:
        body.close()


async def _soon(start: Callable[..., _native.Ticket], *arguments: Any) -> Any:
    """Awaits what a thread of the core's will say. Giving up is hanging up."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: Optional[BaseException]) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def done(value: Any, error: Optional[BaseException]) -> None:
        loop.call_soon_threadsafe(settle, value, error)

    ticket = start(*arguments, done)
    try:
        return await future
    except asyncio.CancelledError:
        ticket.cancel()
        raise


@contextmanager
def _translated(request: Request) -> Iterator[None]:
    """What goes wrong in the core's runtime, as callers know it from remote mode."""
    try:
        yield
    except (asyncio.TimeoutError, TimeoutError):
        raise RequestTimeoutError(
            "no answer within the client's time limit", code="timeout", request_id=request.id
        ) from None
    except ConnectionError as error:
        raise ConnectionFailedError(str(error), code="unavailable", request_id=request.id) from None
