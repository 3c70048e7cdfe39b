"""The sync client. One may be shared by any number of threads."""

from __future__ import annotations

import time
from typing import Any, Iterable, List, Mapping, Optional, TypeVar

from . import _operations as operations
from . import _retries, answers
from ._client_base import DEFAULT_PATIENCE_SECONDS, DEFAULT_RETRIES, ClientBase
from ._events import BundleCallback, Callbacks, TextCallback
from ._exchange import NotSent, Reply, Request
from ._files import Content, PathLike
from ._operations import Operation
from ._remote import RemoteTransport
from .errors import CellblockError

T = TypeVar("T")


class SandboxClient(ClientBase):
    """Sandboxes, in this process (`mode="local"`) or of a service (`mode="remote"`), with the same methods.

    `timeout` is the patience with the service itself, in seconds; the time that a command may take comes on top, and a cell is
    waited for while the service gives signs of life. `user_id` and
    `session_id` name the REPL session that calls use unless they name another; without a `session_id` the client has a
    session of its own, which is removed when the client is closed. Other keywords are settings of the service in lower
    case, such as `sandbox_backend` or `work_root`, for local mode.
    """

    def __init__(
        self,
        mode: Optional[str] = None,
        server_url: Optional[str] = None,
        api_key: Optional[str] = None,
        timeout: float = DEFAULT_PATIENCE_SECONDS,
        *,
        user_id: Optional[str] = None,
        session_id: Optional[str] = None,
        max_retries: int = DEFAULT_RETRIES,
        **settings: Any,
    ) -> None:
        super().__init__(
            RemoteTransport,
            *(mode, server_url, api_key, timeout, user_id, session_id, max_retries, settings),
        )

    def __enter__(self) -> SandboxClient:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._close_made_sessions()
        finally:
            self.close()

    def close(self) -> None:
        """Removes the client's own REPL session, if it used one, and ends its connections.

        Thread sessions stay until they expire; leaving a `with` closes those that the client made.
        """
        if self._closed:
            return
        farewell = self._farewell()
        try:
            if farewell is not None:
                self._transport.send(farewell)
        except (CellblockError, NotSent):
            pass  # the session expires by itself
        finally:
            self._transport.close()

    def _close_made_sessions(self) -> None:
        try:
            for session in [] if self._closed else self._current.made_here():
                self.close_session(session_id=session.session_id)
        except CellblockError:
            pass  # they expire by themselves

    # --- a thread session: bash, one sandbox per conversation

    def get_or_create_session(
        self, user_id: str, thread_id: str, timeout_minutes: int = 30
    ) -> answers.Session:
        """Finds the session of a conversation or makes it. It ends after `timeout_minutes` without use."""
        opening = operations.open_session(self._current, user_id, thread_id, timeout_minutes)
        return self._run(opening)

    def execute(
        self,
        command: str,
        timeout: float = 30,
        auto_retry: bool = True,
        *,
        session_id: Optional[str] = None,
    ) -> answers.CommandResult:
        """Runs a command of bash. An expired session is opened again and the command run once more."""
        running = operations.execute(self._current, session_id, command, timeout, auto_retry)
        return self._run(running)

    def upload_file(
        self,
        path: PathLike,
        remote_name: Optional[str] = None,
        *,
        session_id: Optional[str] = None,
    ) -> answers.UploadedFile:
        """Puts a file of this machine into the workspace."""
        sending = operations.upload_to_thread(self._current, session_id, path, remote_name)
        return self._run(sending)

    def download_file(
        self,
        remote_name: str,
        local_path: Optional[PathLike] = None,
        *,
        session_id: Optional[str] = None,
    ) -> str:
        """Saves a file of the workspace, in the current folder unless told otherwise, and says where."""
        saving = operations.download_from_thread(self._current, session_id, remote_name, local_path)
        return self._run(saving)

    def list_files(self, *, session_id: Optional[str] = None) -> answers.ThreadFiles:
        """All files of the workspace, newest first."""
        return self._run(operations.list_thread_files(self._current, session_id))

    def close_session(self, *, session_id: Optional[str] = None) -> None:
        """Ends the thread session and deletes its files."""
        self._run(operations.close_session(self._current, session_id))

    # --- a REPL session: Python whose variables stay

    def run_code(
        self,
        code: str,
        timeout: Optional[float] = None,
        on_stdout: TextCallback = None,
        on_stderr: TextCallback = None,
        on_result: BundleCallback = None,
        on_display: BundleCallback = None,
        on_error: BundleCallback = None,
        *,
        inputs: Optional[Iterable[str]] = None,
        link_expires_in: Optional[int] = None,
        user_id: Optional[str] = None,
        session_id: Optional[str] = None,
    ) -> answers.RunResult:
        """Runs a cell. Callbacks are called while it runs; one that raises interrupts it."""
        callbacks = Callbacks(on_stdout, on_stderr, on_result, on_display, on_error)
        ids = self._ids(user_id, session_id)
        return self._run(
            operations.run_code(ids, code, timeout, inputs, link_expires_in, callbacks)
        )

    def reset(self, *, user_id: Optional[str] = None, session_id: Optional[str] = None) -> None:
        """Throws the variables away; files stay."""
        self._run(operations.reset(self._ids(user_id, session_id)))

    def interrupt(
        self, *, user_id: Optional[str] = None, session_id: Optional[str] = None
    ) -> answers.Interrupted:
        """Stops the cell that runs, from another thread."""
        return self._run(operations.interrupt(self._ids(user_id, session_id)))

    def stop(self, *, user_id: Optional[str] = None, session_id: Optional[str] = None) -> None:
        """Removes the session: its sandbox and its files."""
        self._run(operations.stop(self._ids(user_id, session_id)))

    def ingest_urls(
        self,
        urls: Iterable[str],
        dest_dir: Optional[str] = None,
        *,
        user_id: Optional[str] = None,
        session_id: Optional[str] = None,
    ) -> answers.IngestReport:
        """Lets the service fetch files into the workspace. A URL that fails is in `errors` and spoils no other."""
        return self._run(operations.ingest_urls(self._ids(user_id, session_id), urls, dest_dir))

    @property
    def files(self) -> Files:
        """The files of a REPL session."""
        return Files(self)

    def health(self) -> Mapping[str, Any]:
        """What the service says of itself."""
        return self._run(operations.health())

    # --- how it is done

    def _run(self, operation: Operation[T]) -> T:
        self._check_open()
        try:
            request = next(operation)
            while True:
                request = operation.send(self._send(request))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            operation.close()

    def _send(self, request: Request) -> Reply:
        attempt = 0
        while True:
            outcome: _retries.Outcome
            try:
                outcome = self._transport.send(request)
            except NotSent as not_sent:
                outcome = not_sent
            seconds = _retries.delay(request, attempt, self._retries, outcome)
            if seconds is None:
                return _retries.result(request, outcome)
            time.sleep(seconds)
            attempt += 1


class Files:
    """The files of a REPL session: the client's, or the one that a call names."""

    def __init__(self, client: SandboxClient) -> None:
        self._client = client

    def upload(
        self,
        source: Content,
        name: Optional[str] = None,
        dest_dir: Optional[str] = None,
        *,
        user_id: Optional[str] = None,
        session_id: Optional[str] = None,
    ) -> str:
        """Puts a file, bytes or an open file into the workspace, and gives its path there."""
        ids = self._client._ids(user_id, session_id)
        return self._client._run(operations.upload_file(ids, source, name, dest_dir))

    def download(
        self,
        path: str,
        local_path: Optional[PathLike] = None,
        *,
        user_id: Optional[str] = None,
        session_id: Optional[str] = None,
    ) -> str:
        """Saves a file of the workspace, in the current folder unless told otherwise, and says where."""
        ids = self._client._ids(user_id, session_id)
        return self._client._run(operations.download_file(ids, path, local_path))

    def read(
        self, path: str, *, user_id: Optional[str] = None, session_id: Optional[str] = None
    ) -> bytes:
        """The bytes of a file of the workspace."""
        return self._client._run(operations.read_file(self._client._ids(user_id, session_id), path))

    def list(
        self, *, user_id: Optional[str] = None, session_id: Optional[str] = None
    ) -> List[answers.WorkspaceFile]:
        """All files of the workspace, by path."""
        return self._client._run(operations.list_files(self._client._ids(user_id, session_id)))

    def link(
        self,
        path: str,
        expires_in: Optional[int] = None,
        *,
        user_id: Optional[str] = None,
        session_id: Optional[str] = None,
    ) -> str:
        """A link that lets anybody download the file, for `expires_in` seconds."""
        ids = self._client._ids(user_id, session_id)
        return self._client._run(operations.link(ids, path, expires_in))

    def delete(
        self,
        paths: Iterable[str],
        *,
        user_id: Optional[str] = None,
        session_id: Optional[str] = None,
    ) -> List[str]:
        """Deletes files of the workspace; gives those that were there."""
        ids = self._client._ids(user_id, session_id)
        return self._client._run(operations.delete_files(ids, paths))
