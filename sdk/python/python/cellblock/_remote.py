"""Remote mode for the sync client: HTTP/1.1 over kept connections, with nothing but the standard library.

Safe to share between threads: a connection has one user at a time. Never sends a request twice by itself.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import select
import socket
import ssl
import threading
import time
from contextlib import contextmanager
from typing import Iterator, Optional
from urllib.parse import urlsplit

from ._exchange import NotSent, Reply, Request, reply_to
from ._files import CHUNK_BYTES
from .errors import ConnectionFailedError, RequestTimeoutError

# The service closes connections that were silent for ten seconds; one that is about to be closed is not used.
IDLE_SECONDS = 5.0
# A forgotten client's session expires by itself if this is not enough.
LEAVING_SECONDS = 5.0


class Server:
    """Where a service is, and the key to it."""

    def __init__(self, url: str, api_key: Optional[str]) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"server_url: {url!r} is not an address such as http://127.0.0.1:8000")
        self.host = parts.hostname
        self.is_tls = parts.scheme == "https"
        self.port = parts.port or (443 if self.is_tls else 80)
        self.prefix = parts.path.rstrip("/")
        self.tls = ssl.create_default_context() if self.is_tls else None
        self.headers = {"x-api-key": api_key} if api_key else {}

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@contextmanager
def translated(server: Server, request: Request) -> Iterator[None]:
    """What goes wrong with a connection, as callers know it."""
    try:
        yield
    except (socket.timeout, TimeoutError, asyncio.TimeoutError):
        raise RequestTimeoutError(
            "no answer within the client's time limit", code="timeout", request_id=request.id
        ) from None
    except (OSError, EOFError, ValueError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
        raise ConnectionFailedError(
            f"connection to {server}: {reason}", code="unavailable", request_id=request.id
        ) from error


class RemoteTransport:
    """Requests to a service somewhere else."""

    def __init__(self, server: Server, patience: float) -> None:
        self._server = server
        self._patience = patience
        self._lock = threading.Lock()
        self._idle: list[tuple[http.client.HTTPConnection, float]] = []
        self._pid = os.getpid()

    def send(self, request: Request) -> Reply:
        """Asks and waits. NotSent if nobody listens."""
        connection = self._take() or self._connect(request)
        kept = False
        try:
            with translated(self._server, request):
                response = self._exchange(connection, request)
            headers = {name.lower(): value for name, value in response.getheaders()}
            body = self._receive(response, request)
            kept = not response.will_close
            return reply_to(request, response.status, headers, body)
        finally:
            if kept:
                self._give_back(connection)
            else:
                connection.close()

    def _receive(self, response: http.client.HTTPResponse, request: Request) -> bytes:
        sink = request.sink if response.status == 200 else None
        if sink is None:
            with translated(self._server, request):
                return response.read()
        while True:
            with translated(self._server, request):
                chunk = response.read1(CHUNK_BYTES)
                if not chunk and response.length:
                    raise http.client.IncompleteRead(b"", response.length)
            if not chunk:
                # Only then may the connection be used again.
                response.close()
                return b""
            for _ in sink(chunk):
                pass

    def _exchange(
        self, connection: http.client.HTTPConnection, request: Request
    ) -> http.client.HTTPResponse:
        assert connection.sock is not None
        connection.sock.settimeout(self._patience + request.work_seconds)
        headers = {**request.headers, **self._server.headers}
        target = self._server.prefix + request.target
        try:
            connection.request(request.method, target, request.fresh_body(), headers)
        except (BrokenPipeError, ConnectionResetError):
            # A service that refuses a long body says so before it has read it all.
            if not callable(request.body):
                raise
        return connection.getresponse()

    def _connect(self, request: Request) -> http.client.HTTPConnection:
        server = self._server
        if server.tls is not None:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                server.host, server.port, timeout=self._patience, context=server.tls
            )
        else:
            connection = http.client.HTTPConnection(
                server.host, server.port, timeout=self._patience
            )
        with translated(server, request):
            try:
                connection.connect()
            except ConnectionRefusedError as refused:
                raise NotSent(str(refused)) from None
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _leave_to_the_parent(self) -> None:
        """In the child of a fork: the parent uses these, and a thread that is not here may hold the lock."""
        if self._pid != os.getpid():
            self._lock, self._idle, self._pid = threading.Lock(), [], os.getpid()

    def _take(self) -> Optional[http.client.HTTPConnection]:
        self._leave_to_the_parent()
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection, since = self._idle.pop()
            # Readable without a question means closed.
            if time.monotonic() - since < IDLE_SECONDS and not _is_readable(connection.sock):
                return connection
            connection.close()

    def _give_back(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._idle.append((connection, time.monotonic()))

    def is_started(self) -> bool:
        """Whether there is somebody to take leave of."""
        return True

    def send_last(self, request: Request) -> None:
        """For a client that is gone: over a connection of its own, and not for long."""
        last = RemoteTransport(self._server, LEAVING_SECONDS)
        try:
            last.send(request)
        finally:
            last.close()

    def close(self) -> None:
        """Ends the kept connections."""
        self._leave_to_the_parent()
        with self._lock:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()


def _is_readable(connected: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connected, select.POLLIN)
    return bool(poll.poll(0))
