"""The events of a cell that runs: server-sent events in, callbacks out.

Never waits. A stream that ends without its last word is an error, never half a result.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Optional

from . import errors

TextCallback = Optional[Callable[[str], object]]
BundleCallback = Optional[Callable[[dict[str, Any]], object]]


@dataclass(frozen=True)
class Callbacks:
    """What a caller wants to hear of while its cell runs."""

    on_stdout: TextCallback = None
    on_stderr: TextCallback = None
    on_result: BundleCallback = None
    on_display: BundleCallback = None
    on_error: BundleCallback = None


class EventStream:
    """One answer of `/v1/execute` as it comes."""

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        self._rest = b""
        self._done: Optional[dict[str, Any]] = None
        self._problem: Optional[dict[str, Any]] = None

    def feed(self, chunk: bytes) -> Iterator[object]:
        """Takes the next bytes; gives what the callbacks returned."""
        *events, self._rest = (self._rest + chunk).split(b"\n\n")
        for event in events:
            yield from self._event(event)

    def answer(self, request_id: str) -> dict[str, Any]:
        """The whole answer, after the last byte."""
        if self._done is not None:
            return self._done
        if self._problem is not None:
            raise errors.of_answer(self._problem["status"], self._problem, request_id, None)
        raise errors.ConnectionFailedError(
            "the stream ended before the cell did", code="unavailable", request_id=request_id
        )

    def _event(self, event: bytes) -> Iterator[object]:
        name, data = "", []
        for line in event.decode("utf-8", "replace").split("\n"):
            key, _, value = line.partition(":")
            value = value[1:] if value.startswith(" ") else value
            if key == "event":
                name = value
            elif key == "data":
                data.append(value)
        if not data:
            return
        content = json.loads("\n".join(data))
        if name == "done":
            self._done = content
        elif name == "error" and "code" in content:
            self._problem = content
        else:
            callback = getattr(self._callbacks, f"on_{name}", None)
            if callback is not None:
                yield callback(content["text"] if name in ("stdout", "stderr") else content)
