"""Every operation of the clients, written once: generators that yield requests, are sent the replies, and return results.

They never wait and never open a connection, so that the sync and the async client, local and remote, do the same.
"""

from __future__ import annotations

import os
from typing import Any, BinaryIO, Callable, Generator, Iterable, Optional, TypeVar

from . import answers
from ._events import Callbacks, EventStream
from ._exchange import Reply, Request, get, post, upload
from ._files import Content, PathLike, name_of, new_file, source_of
from ._threads import CurrentSession, ThreadSession
from .errors import NoSessionError, SessionExpiredError

T = TypeVar("T")
Operation = Generator[Request, Reply, T]
Ids = dict[str, str]

# Enough for any number of files from slow places.
INGESTION_SECONDS = 3600.0
# While a cell waits for its turn or runs, the service gives a sign of life every 15 seconds.
SILENCE_SECONDS = 20.0


# --- thread sessions


def open_session(
    current: CurrentSession, user_id: str, thread_id: str, timeout_minutes: int
) -> Operation[answers.Session]:
    """Finds the session of a thread or makes it."""
    session = current.of_thread(user_id, thread_id, timeout_minutes)
    answer = yield from _open(session)
    session.is_closed = False
    current.add(session)
    current.use_here(session)
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
    if answer.session_id != session.session_id:
        session.session_id = answer.session_id
        session.made_by_pid = os.getpid() if answer.status == "created" else None
    return answer


def _choose(current: CurrentSession, named: Optional[str]) -> tuple[Optional[ThreadSession], str]:
    """The session to work with, if this client opened it, and its present id."""
    session = current.here() if named is None else current.by_id(named)
    if session is not None:
        return session, session.session_id
    if named is None:
        raise NoSessionError(
            "no active session: call get_or_create_session first", code="no_session"
        )
    return None, named


def _in_session(
    current: CurrentSession, named: Optional[str], auto_retry: bool, make: Callable[[str], Request]
) -> Operation[Reply]:
    """A request of a session. One that has expired is opened again, once, if `auto_retry` says so."""
    session, used = _choose(current, named)
    reply = yield make(used)
    if reply.status != 404 or not isinstance(reply.error(), SessionExpiredError):
        return reply
    # What its owner has closed meanwhile is to stay closed.
    if not auto_retry or session is None or session.is_closed:
        raise reply.error()
    # Somebody else who shares it may have opened it again by now.
    if session.session_id == used:
        yield from _open(session)
        if session.is_closed:
            yield _cleanup(session.session_id)
            raise reply.error()
        current.add(session)
    return (yield make(session.session_id))


def _cleanup(session_id: str) -> Request:
    return post("/cleanup", {"session_id": session_id})


def execute(
    current: CurrentSession, named: Optional[str], command: str, timeout: float, auto_retry: bool
) -> Operation[answers.CommandResult]:
    """Runs a command of bash."""

    def make(session_id: str) -> Request:
        body = {"session_id": session_id, "command": command, "timeout": timeout}
        return post("/execute", body, work_seconds=timeout)

    reply = yield from _in_session(current, named, auto_retry, make)
    return answers.CommandResult(reply.json())


def upload_to_thread(
    current: CurrentSession, named: Optional[str], path: PathLike, remote_name: Optional[str]
) -> Operation[answers.UploadedFile]:
    """Puts a file into the workspace."""
    name = name_of(path) if remote_name is None else remote_name
    source = source_of(path)

    def make(session_id: str) -> Request:
        return upload("/upload_file", {"session_id": session_id, "filename": name}, "file", source)

    reply = yield from _in_session(current, named, True, make)
    return answers.UploadedFile(reply.json())


def download_from_thread(
    current: CurrentSession, named: Optional[str], remote_name: str, local_path: Optional[PathLike]
) -> Operation[str]:
    """Saves a file of the workspace here."""
    with new_file(remote_name, local_path) as (file, target):

        def make(session_id: str) -> Request:
            body = {"session_id": session_id, "filename": remote_name}
            return post("/download_file", body, sink=_writer(file))

        reply = yield from _in_session(current, named, True, make)
        reply.json()
    return target


def list_thread_files(
    current: CurrentSession, named: Optional[str]
) -> Operation[answers.ThreadFiles]:
    """All files, newest first."""

    def make(session_id: str) -> Request:
        return get("/list_files", session_id=session_id)

    reply = yield from _in_session(current, named, True, make)
    answer = answers.ThreadFiles(reply.json())
    answer["files"] = [answers.ThreadFile(file) for file in answer["files"]]
    return answer


def close_session(current: CurrentSession, named: Optional[str]) -> Operation[None]:
    """Ends the session and deletes its files. One that is gone already is fine."""
    if named is None and current.here() is None:
        return
    session, session_id = _choose(current, named)
    if session is not None:
        # Before the service hears of it: a command that it ends thereby must not open the session again.
        current.remove(session)
    try:
        reply = yield _cleanup(session_id)
        if reply.status != 404:
            reply.json()
    except BaseException:
        if session is not None:
            session.is_closed = False
            current.add(session)
        raise


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
    # A stream even if nobody wants to see it: how long a cell waits for others and then runs, the service alone knows, so
    # what can be waited for is its next sign of life.
    body["stream"] = True
    stream = EventStream(callbacks)
    reply = yield post("/v1/execute", body, sink=stream.feed, work_seconds=SILENCE_SECONDS)
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
    reply = yield post("/v1/files/upload-urls", body, work_seconds=INGESTION_SECONDS)
    return answers.IngestReport(reply.json())


def upload_file(
    ids: Ids, content: Content, name: Optional[str], dest_dir: Optional[str]
) -> Operation[str]:
    """Puts a file into the workspace and gives its path there."""
    known = name_of(content) if name is None else name
    folder, _, last = known.rpartition("/")
    into = "/".join(part for part in (dest_dir, folder) if part)
    fields = {**ids, "dest_dir": into} if into else ids
    reply = yield upload("/v1/files/upload", fields, last, source_of(content))
    return str(reply.json()["uploaded"][0])


def download_file(ids: Ids, path: str, local_path: Optional[PathLike]) -> Operation[str]:
    """Saves a file of the workspace here."""
    with new_file(path, local_path) as (file, target):
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
    request = get("/health")
    request.also_good = (503,)
    return answers.Answer((yield request).json(503))


def _writer(file: BinaryIO) -> Any:
    def write(chunk: bytes) -> tuple[()]:
        file.write(chunk)
        return ()

    return write
