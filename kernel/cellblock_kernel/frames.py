"""The wire codec: JSON frames to packets and back, as docs/PROTOCOL.md lays them down.

It is pure: it never touches a socket or a clock.
Every packet it makes obeys the limits, and every packet it accepts was checked against them.
"""

from __future__ import annotations

# The C half of `json`: the Python half would import `re`, and user code may patch it.
from _json import encode_basestring as quote
from _json import make_scanner

from cellblock_kernel.private import BUILTINS as __builtins__  # noqa: F401

PAYLOAD_LIMIT = 61_440
FRAME_LIMIT = 1_048_576
PACKET_LIMIT = PAYLOAD_LIMIT + 1
DEPTH_LIMIT = 64
# JSON grows a character to six bytes at worst, so a text of this length always fits one packet.
TEXT_PIECE = 8_192

WHOLE, PART, LAST = b"\x00", b"\x01", b"\x02"


class ProtocolError(Exception):
    """The peer sent bytes that are no frame."""


class _ScanContext:
    """What the C scanner asks of its decoder."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    memo: dict[str, str] = {}

    @staticmethod
    def parse_constant(name: str) -> float:
        raise ProtocolError(f"{name} is not JSON")


_scan = make_scanner(_ScanContext())
_BLANK = " \t\n\r"


def decode(payload: bytes) -> dict[str, object]:
    """One frame from the bytes of its JSON object."""
    try:
        text = str(payload, "utf-8")
        start = 0 if text[:1] == "{" else len(text) - len(text.lstrip(_BLANK))
        frame, end = _scan(text, start)
    except (ValueError, StopIteration, RecursionError) as error:
        raise ProtocolError("frame is not JSON") from error
    if type(frame) is not dict:
        raise ProtocolError("frame is not a JSON object")
    if end != len(text) and text[end:].strip(_BLANK):
        raise ProtocolError("bytes after the frame")
    for value in frame.values():
        if type(value) in (dict, list) and _too_deep(value):
            raise ProtocolError("frame is nested too deep")
    return frame


def _too_deep(value: object) -> bool:
    level = [value]
    # The frame itself is the first level, `value` the second.
    for _ in range(DEPTH_LIMIT - 1):
        deeper: list[object] = []
        for item in level:
            children = item.values() if type(item) is dict else item
            deeper += [child for child in children if type(child) in (dict, list)]
        if not deeper:
            return False
        level = deeper
    return True


def encode(frame: dict[str, object]) -> bytes:
    """The JSON bytes of a frame; what UTF-8 cannot carry (lone surrogates) becomes `?`."""
    return _json_text(frame).encode("utf-8", "replace")


def _json_text(value: object) -> str:
    kind = type(value)
    if kind is str:
        return quote(value)
    if kind is int:
        return repr(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ",".join([f"{quote(k)}:{_json_text(v)}" for k, v in value.items()]) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join([_json_text(item) for item in value]) + "]"
    raise TypeError(f"{type(value).__name__} has no place in a frame")


def packets(payload: bytes) -> list[bytes]:
    """The packets that carry one encoded frame."""
    if len(payload) <= PAYLOAD_LIMIT:
        return [WHOLE + payload]
    if len(payload) > FRAME_LIMIT:
        raise ProtocolError("frame is over the limit")
    cuts = range(0, len(payload), PAYLOAD_LIMIT)
    parts = [PART + payload[cut : cut + PAYLOAD_LIMIT] for cut in cuts]
    parts[-1] = LAST + parts[-1][1:]
    return parts


def stream_packet(execution: int, stream: str, text: str) -> bytes:
    """One whole packet with output; `text` holds at most TEXT_PIECE characters."""
    frame = f'{{"op":"stream","id":{execution},"stream":"{stream}","text":{quote(text)}}}'
    return WHOLE + frame.encode("utf-8", "replace")


class Assembler:
    """Puts the packets of one link together again."""

    def __init__(self) -> None:
        """Start with no frame under way."""
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, packet: bytes) -> dict[str, object] | None:
        """Take one packet; gives the frame that it completes, if it does."""
        if not packet or len(packet) > PACKET_LIMIT:
            raise ProtocolError("packet is empty or over the limit")
        kind = packet[0]
        if kind == 0:
            return decode(packet[1:])
        if kind > 2 or (kind == 2 and not self._parts):
            raise ProtocolError("packet has no place here")
        self._size += len(packet) - 1
        if self._size > FRAME_LIMIT:
            raise ProtocolError("frame is over the limit")
        self._parts.append(packet[1:])
        if kind == 1:
            return None
        payload = b"".join(self._parts)
        self._parts, self._size = [], 0
        return decode(payload)
