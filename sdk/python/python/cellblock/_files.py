"""Files on this side: what is uploaded, and where downloads go.

Never speaks to a service. What is uploaded can be read from its beginning as often as a request has to be made, even while an
earlier attempt is still being read.
"""

from __future__ import annotations

import os
import threading
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Callable, Iterator, Optional, Union

CHUNK_BYTES = 256 * 1024

PathLike = Union[str, "os.PathLike[str]"]
Content = Union[PathLike, bytes, BinaryIO]


@dataclass(frozen=True)
class Source:
    """Bytes to upload. Each call of `chunks` begins anew."""

    size_bytes: int
    chunks: Callable[[], Iterator[bytes]]


def name_of(content: Any) -> str:
    """What a file is called if nobody says otherwise."""
    if not _is_path(content):
        raise TypeError("name: what has no path needs a name")
    return str(os.path.basename(os.fspath(content)))


def source_of(content: Content) -> Source:
    """A file of this machine, bytes, or an open file from where it stands."""
    if isinstance(content, (bytes, bytearray, memoryview)):
        return _source_of_bytes(bytes(content))
    if _is_path(content):
        return _source_of_path(os.path.abspath(content))  # type: ignore[arg-type, type-var]
    return _source_of_open_file(content)  # type: ignore[arg-type]


def _is_path(content: object) -> bool:
    return isinstance(content, (str, os.PathLike))


def _source_of_bytes(content: bytes) -> Source:
    def chunks() -> Iterator[bytes]:
        for start in range(0, len(content), CHUNK_BYTES):
            yield content[start : start + CHUNK_BYTES]

    return Source(len(content), chunks)


def _source_of_path(path: str) -> Source:
    # Opened here too, so that a file that cannot be read is said before anything is sent.
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)

    def chunks() -> Iterator[bytes]:
        with open(path, "rb") as file:
            yield from _pieces(file.read, size)

    return Source(size, chunks)


def _source_of_open_file(file: BinaryIO) -> Source:
    if not file.seekable():
        raise ValueError("source: an open file must be seekable; read it and upload the bytes")
    start = file.tell()
    size = file.seek(0, os.SEEK_END) - start
    # An earlier attempt may still be read by another thread, and there is one position for both.
    lock = threading.Lock()

    def chunks() -> Iterator[bytes]:
        position = start

        def read(most: int) -> bytes:
            nonlocal position
            with lock:
                file.seek(position)
                chunk = file.read(most)
            position += len(chunk)
            return chunk

        return _pieces(read, size)

    return Source(max(size, 0), chunks)


def _pieces(read: Callable[[int], bytes], left: int) -> Iterator[bytes]:
    """What is sent is what was promised, even if the file grows meanwhile."""
    while left > 0:
        chunk = read(min(CHUNK_BYTES, left))
        if not chunk:
            raise EOFError("the file became shorter while it was sent")
        left -= len(chunk)
        yield chunk


@contextmanager
def new_file(remote: str, local: Optional[PathLike]) -> Iterator[tuple[BinaryIO, str]]:
    """A file that appears under its name only if it is whole."""
    name = remote.rstrip("/").rpartition("/")[2]
    target = os.fspath(local) if local is not None else os.path.join(os.getcwd(), name)
    if os.path.isdir(target):
        target = os.path.join(target, name)
    temporary = os.path.join(os.path.dirname(target), f".cellblock-{uuid.uuid4().hex}")
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
    # As any new file, so that the kernel applies the umask: to ask for it is to change it, for other threads too.
    handle = os.open(temporary, flags, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file, target
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
