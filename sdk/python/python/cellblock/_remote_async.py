"""Remote mode for the async client: the little of HTTP/1.1 that the service speaks, on asyncio's streams.

A task that is cancelled hangs up, and so interrupts its cell. Never sends a request twice by itself.
"""

from __future__ import annotations

import asyncio
import http.client
import time
from typing import AsyncIterator, Optional

from ._exchange import CHUNK_BYTES, Reply, Request, Sink, drain
from ._remote import IDLE_SECONDS, RemoteTransport, Server, translated

MAX_LINE_BYTES = 64 * 1024


class _Connection:
    """One connection, of one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.loop = asyncio.get_running_loop()
        self.idle_since = 0.0

    def is_usable(self) -> bool:
        fresh = time.monotonic() - self.idle_since < IDLE_SECONDS
        return fresh and not self.reader.at_eof() and not self.writer.is_closing()

    def close(self) -> None:
        # A connection of a loop that is gone went with it.
        if not self.loop.is_closed():
            self.writer.close()


class AsyncRemoteTransport:
    """Requests to a service somewhere else."""

    def __init__(self, server: Server, patience: float) -> None:
        self._server = server
        self._patience = patience
        self._idle: list[_Connection] = []

    async def send_async(self, request: Request) -> Reply:
        """Asks. ConnectionRefusedError if nothing was sent because nobody listens."""
        connection = self._take() or await self._connect()
        limit = self._patience + request.work_seconds
        kept = False
        try:
            with translated(self._server):
                status, headers = await asyncio.wait_for(self._exchange(connection, request), limit)
            sink = request.sink if status == 200 else None
            body = await self._receive(connection, headers, sink, limit)
            kept = headers.get("connection", "").lower() != "close"
            return Reply(status, headers, body)
        finally:
            if kept:
                connection.idle_since = time.monotonic()
                self._idle.append(connection)
            else:
                connection.close()

    async def _connect(self) -> _Connection:
        server = self._server
        opening = asyncio.open_connection(
            server.host, server.port, ssl=server.tls, limit=MAX_LINE_BYTES
        )
        with translated(server):
            return _Connection(*await asyncio.wait_for(opening, self._patience))

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
        headers: dict[str, str],
        sink: Optional[Sink],
        limit: float,
    ) -> bytes:
        gathered: list[bytes] = []
        chunks = _chunks(connection.reader, headers)
        while True:
            with translated(self._server):
                chunk = await asyncio.wait_for(_next(chunks), limit)
            if chunk is None:
                return b"".join(gathered)
            if sink is None:
                gathered.append(chunk)
            else:
                await drain(sink(chunk))

    def blocking(self, patience: float) -> RemoteTransport:
        """One for a last request, where there is no event loop."""
        return RemoteTransport(self._server, patience)

    async def close_async(self) -> None:
        """Ends the kept connections."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        # Sockets are closed by the loop a moment later; this is that moment.
        await asyncio.sleep(0)


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
