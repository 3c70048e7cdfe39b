"""Remote mode for the async client: the little of HTTP/1.1 that the service speaks, on asyncio's streams.

A task that is cancelled hangs up, and so interrupts its cell. Never sends a request twice by itself. A fork's child leaves its
parent's connections alone.
"""

from __future__ import annotations

import asyncio
import errno
import http.client
import os
import re
import time
from typing import AsyncIterator, Optional
from weakref import WeakSet

from ._exchange import NotSent, Reply, Request, drain, reply_to
from ._files import CHUNK_BYTES
from ._patience import within
from ._remote import IDLE_SECONDS, RemoteTransport, Server, translated

MAX_LINE_BYTES = 64 * 1024


class _Connection:
    """One connection, of one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.loop = asyncio.get_running_loop()
        self.pid = os.getpid()
        self.idle_since = 0.0
        _connections.add(self)

    def is_usable(self) -> bool:
        fresh = time.monotonic() - self.idle_since < IDLE_SECONDS
        is_open = not self.reader.at_eof() and not self.writer.is_closing()
        return fresh and is_open and self.pid == os.getpid()

    def close(self) -> None:
        # A connection of a loop that is gone went with it.
        if self.pid == os.getpid() and not self.loop.is_closed():
            self.writer.close()


_connections: WeakSet[_Connection] = WeakSet()
# In a child: kept for ever.
_of_the_parent: list[_Connection] = []


def _leave_to_the_parent() -> None:
    """Parent and child share what the loop waits on: to close a connection here, or to free it, would make the parent deaf."""
    _of_the_parent.extend(_connections)


os.register_at_fork(after_in_child=_leave_to_the_parent)


class AsyncRemoteTransport:
    """Requests to a service somewhere else."""

    def __init__(self, server: Server, patience: float) -> None:
        self._server = server
        self._patience = patience
        self._idle: list[_Connection] = []

    async def send_async(self, request: Request) -> Reply:
        """Asks. NotSent if nobody listens."""
        connection = self._take() or await self._connect(request)
        limit = self._patience + request.work_seconds
        kept = False
        try:
            with translated(self._server, request):
                status, headers = await within(self._exchange(connection, request), limit)
            body = await self._receive(connection, request, status, headers)
            kept = headers.get("connection", "").lower() != "close"
            return reply_to(request, status, headers, body)
        finally:
            if kept:
                connection.idle_since = time.monotonic()
                self._idle.append(connection)
            else:
                connection.close()

    async def _connect(self, request: Request) -> _Connection:
        server = self._server
        opening = asyncio.open_connection(
            server.host, server.port, ssl=server.tls, limit=MAX_LINE_BYTES
        )
        with translated(server, request):
            try:
                return _Connection(*await within(opening, self._patience))
            except OSError as error:
                if _is_refusal(error):
                    raise NotSent(str(error)) from None
                raise

    def _take(self) -> Optional[_Connection]:
        loop = asyncio.get_running_loop()
        while self._idle:
            connection = self._idle.pop()
            if connection.loop is loop and connection.is_usable():
                return connection
            connection.close()
        return None

    async def _exchange(
        self, connection: _Connection, request: Request
    ) -> tuple[int, dict[str, str]]:
        body = request.fresh_body()
        headers = {
            "host": str(self._server),
            **request.headers,
            **self._server.headers,
        }
        if isinstance(body, bytes):
            headers["content-length"] = str(len(body))
        lines = [f"{request.method} {self._server.prefix}{request.target} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        writer = connection.writer
        try:
            writer.write(head + body if isinstance(body, bytes) else head)
            if body is not None and not isinstance(body, bytes):
                for chunk in body:
                    writer.write(chunk)
                    await writer.drain()
            await writer.drain()
        except (BrokenPipeError, ConnectionResetError):
            # A service that refuses a long body says so before it has read it all.
            if not callable(request.body):
                raise
        return await self._head(connection.reader)

    async def _head(self, reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
        status = (await _line(reader)).split(None, 2)
        if len(status) < 2 or not status[0].startswith("HTTP/1."):
            raise http.client.BadStatusLine(" ".join(status))
        headers = {}
        while line := await _line(reader):
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        return int(status[1]), headers

    async def _receive(
        self,
        connection: _Connection,
        request: Request,
        status: int,
        headers: dict[str, str],
    ) -> bytes:
        gathered: list[bytes] = []
        sink = request.sink if status == 200 else None
        limit = self._patience + request.work_seconds
        chunks = _chunks(connection.reader, headers)
        while True:
            with translated(self._server, request):
                chunk = await within(_next(chunks), limit)
            if chunk is None:
                return b"".join(gathered)
            if sink is None:
                gathered.append(chunk)
            else:
                await drain(sink(chunk))

    def is_started(self) -> bool:
        """Whether there is somebody to take leave of."""
        return True

    def send_last(self, request: Request) -> None:
        """For a client that is gone, where there is no event loop."""
        RemoteTransport(self._server, self._patience).send_last(request)

    async def close_async(self) -> None:
        """Ends the kept connections."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        # Sockets are closed by the loop a moment later; this is that moment.
        await asyncio.sleep(0)


def _is_refusal(error: OSError) -> bool:
    """Of a host with several addresses asyncio tells only in words what became of each."""
    numbers = re.findall(r"\[Errno (\d+)\]", str(error))
    return bool(numbers) and all(int(number) == errno.ECONNREFUSED for number in numbers)


async def _line(reader: asyncio.StreamReader) -> str:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError("the service hung up")
    return line.rstrip(b"\r\n").decode("latin-1")


async def _next(chunks: AsyncIterator[bytes]) -> Optional[bytes]:
    async for chunk in chunks:
        return chunk
    return None


async def _chunks(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    """The pieces of a body as they come."""
    if "chunked" in headers.get("transfer-encoding", "").lower():
        while size := int((await _line(reader)).partition(";")[0], 16):
            yield await reader.readexactly(size)
            await _line(reader)
        while await _line(reader):
            pass
        return
    left = int(headers.get("content-length", "0"))
    while left:
        chunk = await reader.read(min(left, CHUNK_BYTES))
        if not chunk:
            raise EOFError("the service hung up")
        left -= len(chunk)
        yield chunk
