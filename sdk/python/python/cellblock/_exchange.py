"""One request and its reply, as both transports see them.

Knows HTTP's words but opens no connection. A body that is streamed can be made anew, so that a refused request can be tried again.
Every request has an id, by which the service's log and every error know it.
"""

from __future__ import annotations

import inspect
import json
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Union
from urllib.parse import urlencode

from . import errors
from ._files import Source

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
    #: How long the work itself may take before anything is heard of it, beside the client's own patience.
    work_seconds: float = 0.0
    #: Statuses that are an answer too, and no reason to ask again.
    also_good: tuple[int, ...] = ()
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        self.headers["x-request-id"] = self.id

    def fresh_body(self) -> Union[bytes, Iterator[bytes], None]:
        """The body from its beginning."""
        return self.body() if callable(self.body) else self.body


class NotSent(Exception):
    """Nobody listens, so nothing was sent. Raised only while connecting: what a callback raises is never taken for it."""


@dataclass
class Reply:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    #: By which the service's log knows this request.
    request_id: str

    @property
    def retry_after(self) -> Optional[float]:
        """Seconds, if the service or a proxy named them, or a moment."""
        value = self.headers.get("retry-after", "")
        try:
            return max(0.0, float(value))
        except ValueError:
            return _seconds_until(value)

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


def reply_to(request: Request, status: int, headers: Mapping[str, str], body: bytes) -> Reply:
    """An answer without an id, such as a proxy's, is known by the one that was sent."""
    return Reply(status, headers, body, headers.get("x-request-id", request.id))


def _seconds_until(moment: str) -> Optional[float]:
    try:
        then = parsedate_to_datetime(moment)
    except (TypeError, ValueError):
        return None
    then = then if then.tzinfo else then.replace(tzinfo=timezone.utc)
    return max(0.0, (then - datetime.now(timezone.utc)).total_seconds())


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


def upload(path: str, fields: Mapping[str, str], file_name: str, source: Source) -> Request:
    """A form with one file, which is read while it is sent."""
    if "\r" in file_name or "\n" in file_name:
        raise errors.InvalidRequestError(
            f"name: {file_name!r} has a line break", code="invalid_argument"
        )
    boundary = uuid.uuid4().hex
    parts = [_part(boundary, f'name="{name}"', value.encode()) for name, value in fields.items()]
    quoted = file_name.replace('"', '\\"')
    head = b"".join(parts) + _part(boundary, f'name="file"; filename="{quoted}"', b"")[:-2]
    tail = f"\r\n--{boundary}--\r\n".encode()

    def chunks() -> Iterator[bytes]:
        yield head
        yield from source.chunks()
        yield tail

    headers = {
        "content-type": f"multipart/form-data; boundary={boundary}",
        "content-length": str(len(head) + source.size_bytes + len(tail)),
    }
    return Request("POST", path, headers, chunks)


def _part(boundary: str, disposition: str, value: bytes) -> bytes:
    head = f"--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n"
    return head.encode() + value + b"\r\n"
