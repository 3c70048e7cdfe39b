"""One request and its reply, as both transports see them.

Knows HTTP's words but opens no connection. A body that is streamed can be made anew, so that a refused request can be tried again.
"""

from __future__ import annotations

import inspect
import json
import os
import uuid
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Callable, Iterable, Iterator, Mapping, Optional, Union
from urllib.parse import urlencode

from . import errors

CHUNK_BYTES = 256 * 1024

Chunks = Callable[[], Iterator[bytes]]
# Takes a piece of a reply that is read as it comes; gives what callbacks returned, which may want to be awaited.
Sink = Callable[[bytes], Iterable[object]]


@dataclass
class Request:
    """What to ask. With a `sink`, the body of a good answer goes there piece by piece."""

    method: str
    target: str
    headers: dict[str, str] = field(default_factory=dict)
    body: Union[bytes, Chunks, None] = None
    sink: Optional[Sink] = None
    #: How long the work itself may take, beside the client's own patience.
    work_seconds: float = 0.0

    def fresh_body(self) -> Union[bytes, Iterator[bytes], None]:
        """The body from its beginning."""
        return self.body() if callable(self.body) else self.body


@dataclass
class Reply:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def retry_after(self) -> Optional[float]:
        """Seconds, if the service named them."""
        try:
            return max(0.0, float(self.headers["retry-after"]))
        except (KeyError, ValueError):
            return None

    @property
    def request_id(self) -> Optional[str]:
        """By which the service's log knows this request."""
        return self.headers.get("x-request-id")

    def json(self, *also: int) -> Any:
        """The body of a good answer; raises what any other one stands for. Statuses in `also` are good too."""
        if self.status < 300 or self.status in also:
            return json.loads(self.body) if self.body else {}
        raise self.error()

    def error(self) -> errors.CellblockError:
        """The error that this reply stands for."""
        try:
            body = json.loads(self.body)
        except ValueError:
            body = {}
        body = body if isinstance(body, dict) else {}
        return errors.of_answer(self.status, body, self.request_id, self.retry_after)


async def drain(returned: Iterable[object]) -> None:
    """Awaits what callbacks returned, if they are coroutines."""
    for value in returned:
        if inspect.isawaitable(value):
            await value


def get(path: str, /, **query: Optional[str]) -> Request:
    """A question."""
    given = {name: value for name, value in query.items() if value is not None}
    return Request("GET", f"{path}?{urlencode(given)}")


def post(path: str, body: Mapping[str, Any], **more: Any) -> Request:
    """A command with a JSON body."""
    encoded = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return Request("POST", path, {"content-type": "application/json"}, encoded, **more)


def upload(path: str, fields: Mapping[str, str], file_name: str, file: BinaryIO) -> Request:
    """A form with one file, which is read while it is sent."""
    boundary = uuid.uuid4().hex
    parts = [_part(boundary, f'name="{name}"', value.encode()) for name, value in fields.items()]
    quoted = file_name.replace("\r", "%0D").replace("\n", "%0A").replace('"', "%22")
    head = b"".join(parts) + _part(boundary, f'name="file"; filename="{quoted}"', b"")[:-2]
    tail = f"\r\n--{boundary}--\r\n".encode()
    start = file.tell()
    size = file.seek(0, os.SEEK_END) - start

    def chunks() -> Iterator[bytes]:
        yield head
        file.seek(start)
        left = size
        # What is sent is what was promised, even if the file grows meanwhile.
        while left and (chunk := file.read(min(CHUNK_BYTES, left))):
            left -= len(chunk)
            yield chunk
        yield tail

    headers = {
        "content-type": f"multipart/form-data; boundary={boundary}",
        "content-length": str(len(head) + size + len(tail)),
    }
    return Request("POST", path, headers, chunks)


def _part(boundary: str, disposition: str, value: bytes) -> bytes:
    head = f"--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n"
    return head.encode() + value + b"\r\n"
