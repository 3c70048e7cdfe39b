"""Makes MIME bundles of values: the repr, and whatever richer forms a value offers.

It never fails for a rich form that raises, and asks only the value's type, never a class object.
Every bundle fits a frame.
"""

from __future__ import annotations

from binascii import b2a_base64

from cellblock_kernel import figures, trusted
from cellblock_kernel.private import BUILTINS as __builtins__  # noqa: F401

VALUE_LIMIT_BYTES = 700_000
BUNDLE_LIMIT_BYTES = 950_000

_PLAIN_TYPES = frozenset((int, str, float, bool, bytes, list, dict, tuple, set, complex))
_METHODS = (
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
    ("image/svg+xml", "_repr_svg_"),
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
    ("text/latex", "_repr_latex_"),
    ("application/json", "_repr_json_"),
)
_BASE64 = ("image/png", "image/jpeg")


def bundle_of(value: object) -> dict[str, str]:
    """The bundle of one value; raises what its `__repr__` raises."""
    text = repr(value)
    if type(value) in _PLAIN_TYPES:
        return {"text/plain": text} if len(text) < VALUE_LIMIT_BYTES // 6 else _fit(text, {})
    return _fit(text, _rich_forms(value))


def _rich_forms(value: object) -> dict[str, str]:
    kind = type(value)
    found: dict[str, object] = {}
    offered = _ask(kind, "_repr_mimebundle_", value)
    if isinstance(offered, dict):
        found.update(offered)
    for mime, method in _METHODS:
        if mime not in found:
            answer = _ask(kind, method, value)
            if answer is not None:
                found[mime] = answer
    if "image/png" not in found and figures.is_figure(value):
        found["image/png"] = figures.png_of(value)
    found.pop("text/plain", None)
    forms: dict[str, str] = {}
    for mime, answer in found.items():
        text = _as_text(mime, answer)
        if text is not None:
            forms[str(mime)] = text
    return forms


def _ask(kind: type, method: str, value: object) -> object:
    """What a rich method answers, without the metadata that it may add."""
    try:
        function = getattr(kind, method, None)
        answer = function(value) if function is not None else None
    except Exception:  # a rich form is an extra
        return None
    if isinstance(answer, tuple) and len(answer) == 2:
        return answer[0]
    return answer


def _as_text(mime: object, answer: object) -> str | None:
    if mime in _BASE64 and isinstance(answer, (bytes, bytearray)):
        return b2a_base64(answer, newline=False).decode("ascii")
    if isinstance(answer, bytes):
        return str(answer, "utf-8", "replace")
    if isinstance(answer, str):
        return str.__str__(answer)
    if mime == "application/json" or str(mime).endswith("+json"):
        try:
            return trusted.load("json").dumps(answer)
        except Exception:  # not JSON after all
            return None
    return None


def _size(text: str) -> int:
    """Bytes of a value, and what JSON adds to them at a guess."""
    return len(text.encode("utf-8", "replace")) + text.count('"') + text.count("\n")


def _fit(text: str, forms: dict[str, str]) -> dict[str, str]:
    """Leave out what is too large, and say so in text/plain."""
    if len(text) > VALUE_LIMIT_BYTES // 6:
        data = text.encode("utf-8", "replace")
        if len(data) > VALUE_LIMIT_BYTES:
            text = str(data[:VALUE_LIMIT_BYTES], "utf-8", "ignore")
            text += f"\n[{len(data)} bytes; the rest is left out]"
    left_out = []
    room = BUNDLE_LIMIT_BYTES - _size(text)
    bundle = {"text/plain": text}
    for mime in sorted(forms, key=lambda name: _size(forms[name])):
        size = _size(forms[mime])
        if size > VALUE_LIMIT_BYTES or size > room:
            left_out.append(f"[{mime} of {size} bytes is left out: too large]")
            continue
        room -= size
        bundle[mime] = forms[mime]
    if left_out:
        bundle["text/plain"] = "\n".join([text, *left_out])
    return bundle
