"""Every operation of the clients, written once: generators that yield requests, are sent the replies, and return results.

They never wait and never open a connection, so that the sync and the async client, local and remote, do the same.
"""

from __future__ import annotations

import io
import os
import tempfile
from contextlib import contextmanager
from typing import Any, BinaryIO, Callable, Generator, Iterable, Iterator, Optional, TypeVar, Union

from . import answers
from ._events import Callbacks, EventStream
from ._exchange import Reply, Request, get, post, upload
from ._threads import CurrentSession, ThreadSession
from .errors import SessionExpiredError

T = TypeVar("T")
Operation = Generator[Request, Reply, T]
PathLike = Union[str, "os.PathLike[str]"]
Ids = dict[str, str]

# The longest that the service lets any code run.
LONGEST_WORK_SECONDS = 3600.0


# --- thread sessions


def open_session(
    current: CurrentSession, user_id: str, thread_id: str, timeout_minutes: int
) -> Operation[answers.Session]:
    """Finds the session of a thread or makes it."""
    session = ThreadSession(user_id, thread_id, timeout_minutes)
    answer = yield from _open(session)
    current.set(session)
    return answer


def _open(session: ThreadSession) -> Operation[answers.Session]:
    body = {
        "user_id": session.user_id,
        "thread_id": session.thread_id,
        "timeout_minutes": session.timeout_minutes,
    }
    reply = yield post("/create_session", body)
    # 409 is the answer for a session that exists already.
    answer = answers.Session(reply.json(409))
    session.session_id = answer.session_id
    return answer


def _in_session(
    current: CurrentSession, auto_retry: bool, make: Callable[[str], Request]
) -> Operation[Reply]:
    """A request of the current session. One that has expired is opened again, once, if `auto_retry` says so."""
    session, used = current.get()
    reply = yield make(used)
    if reply.status != 404 or not isinstance(reply.error(), SessionExpiredError):
        return reply
    if not auto_retry:
        raise reply.error()
    # Somebody else who shares it may have opened it again by now.
    opened = session.session_id
    if opened is None or opened == used:
        opened = (yield from _open(session)).session_id
    return (yield make(opened))


def execute(
    current: CurrentSession, command: str, timeout: float, auto_retry: bool
) -> Operation[answers.CommandResult]:
    """Runs a command of bash."""

    def make(session_id: str) -> Request:
        body = {"session_id": session_id, "command": command, "timeout": timeout}
        return post("/execute", body, work_seconds=timeout)

    reply = yield from _in_session(current, auto_retry, make)
    return answers.CommandResult(reply.json())


def upload_to_thread(
    current: CurrentSession, path: PathLike, remote_name: Optional[str]
) -> Operation[answers.UploadedFile]:
    """Puts a file into the workspace."""
    name = remote_name or os.path.basename(os.fspath(path))
    with open(path, "rb") as file:

        def make(session_id: str) -> Request:
            fields = {"session_id": session_id, "filename": name}
            return upload("/upload_file", fields, "file", file)

        reply = yield from _in_session(current, True, make)
    return answers.UploadedFile(reply.json())


def download_from_thread(
    current: CurrentSession, remote_name: str, local_path: Optional[PathLike]
) -> Operation[str]:
    """Saves a file of the workspace here."""
    with _new_file(remote_name, local_path) as (file, target):

        def make(session_id: str) -> Request:
            body = {"session_id": session_id, "filename": remote_name}
            return post("/download_file", body, sink=_writer(file))

        reply = yield from _in_session(current, True, make)
        reply.json()
    return target


def list_thread_files(current: CurrentSession) -> Operation[answers.ThreadFiles]:
    """All files, newest first."""
    reply = yield from _in_session(current, True, lambda id: get("/list_files", session_id=id))
    answer = answers.ThreadFiles(reply.json())
    answer["files"] = [answers.ThreadFile(file) for file in answer["files"]]
    return answer


def close_session(current: CurrentSession) -> Operation[None]:
    """Ends the session and deletes its files. One that is gone already is fine."""
    session = current.find()
    if session is None:
        return
    reply = yield post("/cleanup", {"session_id": session.session_id})
    if reply.status != 404:
        reply.json()
    session.session_id = None


# --- the REPL


def run_code(
    ids: Ids,
    code: str,
    timeout: Optional[float],
    inputs: Optional[Iterable[str]],
    link_seconds: Optional[int],
    callbacks: Callbacks,
) -> Operation[answers.RunResult]:
    """Runs a cell."""
    more = {"timeout_seconds": timeout, "presign_expires_in": link_seconds}
    body: dict[str, Any] = {**ids, "code": code}
    body.update({name: value for name, value in more.items() if value is not None})
    if inputs is not None:
        body["inputs"] = list(inputs)
    # Without a time limit of the caller's the service has one of its own, which it alone knows.
    work_seconds = LONGEST_WORK_SECONDS if timeout is None else float(timeout)
    if not callbacks:
        reply = yield post("/v1/execute", body, work_seconds=work_seconds)
        return _run_result(reply.json())
    stream = EventStream(callbacks)
    body["stream"] = True
    reply = yield post("/v1/execute", body, sink=stream.feed, work_seconds=work_seconds)
    if reply.status != 200:
        raise reply.error()
    return _run_result(stream.answer(reply.request_id))


def _run_result(answer: dict[str, Any]) -> answers.RunResult:
    result = answers.RunResult(answer)
    result["artifacts"] = [answers.Artifact(artifact) for artifact in answer["artifacts"]]
    return result


def reset(ids: Ids) -> Operation[None]:
    """Throws the variables away."""
    (yield post("/v1/sandbox/reset", ids)).json()


def interrupt(ids: Ids) -> Operation[answers.Interrupted]:
    """Stops the running cell."""
    return answers.Interrupted((yield post("/v1/sandbox/interrupt", ids)).json())


def stop(ids: Ids) -> Operation[None]:
    """Removes sandbox and files."""
    (yield post("/v1/sandbox/stop", ids)).json()


def ingest_urls(
    ids: Ids, urls: Iterable[str], dest_dir: Optional[str]
) -> Operation[answers.IngestReport]:
    """Lets the service fetch files."""
    body = {**ids, "urls": list(urls), "dest_dir": dest_dir}
    reply = yield post("/v1/files/upload-urls", body, work_seconds=LONGEST_WORK_SECONDS)
    return answers.IngestReport(reply.json())


def upload_file(
    ids: Ids, source: Union[PathLike, bytes, BinaryIO], name: Optional[str], dest_dir: Optional[str]
) -> Operation[str]:
    """Puts a file into the workspace and gives its path there."""
    with _source(source) as file:
        known = name or _name_of(source)
        folder, _, last = known.rpartition("/")
        into = "/".join(part for part in (dest_dir, folder) if part)
        fields = {**ids, "dest_dir": into} if into else ids
        reply = yield upload("/v1/files/upload", fields, last, file)
    return str(reply.json()["uploaded"][0])


def download_file(ids: Ids, path: str, local_path: Optional[PathLike]) -> Operation[str]:
    """Saves a file of the workspace here."""
    with _new_file(path, local_path) as (file, target):
        request = get("/v1/files/download", **ids, path=path)
        request.sink = _writer(file)
        (yield request).json()
    return target


def read_file(ids: Ids, path: str) -> Operation[bytes]:
    """The bytes of a file of the workspace."""
    reply = yield get("/v1/files/download", **ids, path=path)
    if reply.status != 200:
        raise reply.error()
    return reply.body


def list_files(ids: Ids) -> Operation[list[answers.WorkspaceFile]]:
    """All files, by path."""
    answer = (yield get("/v1/files/list", **ids)).json()
    return [answers.WorkspaceFile(file) for file in answer["files"]]


def link(ids: Ids, path: str, expires_in: Optional[int]) -> Operation[str]:
    """A presigned link."""
    seconds = None if expires_in is None else str(expires_in)
    reply = yield get("/v1/files/download-url", **ids, path=path, expires_in=seconds)
    return str(reply.json()["download_url"])


def delete_files(ids: Ids, paths: Iterable[str]) -> Operation[list[str]]:
    """Which of them were there and are gone now."""
    reply = yield post("/v1/files/delete", {**ids, "paths": list(paths)})
    return list(reply.json()["deleted"])


def health() -> Operation[answers.Answer]:
    """Whether the service can do its work; 503 is an answer too."""
    return answers.Answer((yield get("/health")).json(503))


# --- files on this side


def _is_path(source: object) -> bool:
    return isinstance(source, (str, os.PathLike))


def _name_of(source: Any) -> str:
    if not _is_path(source):
        raise TypeError("name: what has no path needs a name")
    return str(os.path.basename(os.fspath(source)))


@contextmanager
def _source(source: Union[PathLike, bytes, BinaryIO]) -> Iterator[BinaryIO]:
    if isinstance(source, (bytes, bytearray, memoryview)):
        yield io.BytesIO(source)
    elif _is_path(source):
        with open(source, "rb") as file:  # type: ignore[arg-type]
            yield file  # type: ignore[misc]
    else:
        yield source  # type: ignore[misc]


@contextmanager
def _new_file(remote: str, local: Optional[PathLike]) -> Iterator[tuple[BinaryIO, str]]:
    """A file that appears under its name only if it is whole."""
    name = remote.rstrip("/").rpartition("/")[2]
    target = os.fspath(local) if local is not None else os.path.join(os.getcwd(), name)
    if os.path.isdir(target):
        target = os.path.join(target, name)
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(target) or ".", prefix=".cellblock-")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file, target
        # As a file that was just opened for writing would have it, not as mkstemp makes it.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _writer(file: BinaryIO) -> Any:
    def write(chunk: bytes) -> tuple[()]:
        file.write(chunk)
        return ()

    return write
