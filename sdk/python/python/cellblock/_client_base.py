"""What both clients are made of: arguments checked, ids chosen, and what is left when a client is let go.

Never waits, except for the own session of a forgotten client of a service to be stopped.
"""

from __future__ import annotations

import os
import uuid
import warnings
import weakref
from dataclasses import dataclass
from typing import Any, Callable, Optional, Union

from . import _native
from ._exchange import Request, post
from ._local import HELPER, LocalTransport, Settings, settings_of
from ._operations import Ids
from ._remote import RemoteTransport, Server
from ._remote_async import AsyncRemoteTransport
from ._threads import CurrentSession
from .answers import Verdict
from .errors import NoSessionError

DEFAULT_PATIENCE_SECONDS = 30.0
DEFAULT_RETRIES = 3
DEFAULT_USER = "default"

Transport = Union[LocalTransport, RemoteTransport, AsyncRemoteTransport]


@dataclass
class OwnSession:
    """The REPL session of a client that named none: nobody else can find it, so it ends with the client."""

    user_id: str
    name: str
    #: Of the process that used it first. It alone ends it: a fork's child must not end what its parent uses.
    pid: Optional[int] = None

    @property
    def ids(self) -> Ids:
        """Those of the first user's; before that, such that parent and child do not meet in one session by accident."""
        return {"user_id": self.user_id, "session_id": f"{self.name}-{self.pid or os.getpid()}"}

    def use(self) -> Ids:
        """From now on there is something to end."""
        self.pid = self.pid or os.getpid()
        return self.ids


class ClientBase:
    """Mode, ids and settings of a client."""

    _closed = False

    def __init__(
        self,
        make_remote: Callable[[Server, float], Transport],
        mode: Optional[str],
        server_url: Optional[str],
        api_key: Optional[str],
        timeout: float,
        user_id: Optional[str],
        session_id: Optional[str],
        max_retries: int,
        settings: dict[str, Any],
    ) -> None:
        self.mode = mode if mode is not None else ("remote" if server_url else "local")
        self.server_url = server_url
        self._retries = max_retries
        self._settings: Optional[Settings] = None
        self._transport: Any
        if self.mode == "local":
            if server_url or api_key:
                raise ValueError("server_url and api_key are for mode='remote'")
            self._settings = settings_of(settings)
            self._transport = LocalTransport(self._settings, timeout)
        elif self.mode == "remote":
            if settings:
                names = ", ".join(settings)
                raise TypeError(f"{names}: settings are for mode='local'; a server has its own")
            if not server_url:
                raise ValueError("mode='remote' needs server_url, such as http://127.0.0.1:8000")
            self._transport = make_remote(Server(server_url, api_key), timeout)
        else:
            raise ValueError(f"mode: {mode!r} is neither 'local' nor 'remote'")
        self._current = CurrentSession()
        self._user_id = DEFAULT_USER if user_id is None else user_id
        self._session_id = session_id
        self._own = OwnSession(self._user_id, f"client-{uuid.uuid4().hex}")
        self._finalizer = weakref.finalize(self, _leave, self._own, self._transport)

    @property
    def session_id(self) -> Optional[str]:
        """Of the thread session that this thread or task works with, if that is clear."""
        try:
            session = self._current.here()
        except NoSessionError:
            return None
        return session.session_id if session is not None else None

    def validate_command(self, command: str) -> Verdict:
        """What the command policy says about a command, without asking: the service's own code, here.

        In local mode it is the policy of this client's settings, in remote mode that of a service with default settings.
        """
        return verdict(command, self._settings)

    def _ids(self, user_id: Optional[str], session_id: Optional[str]) -> Ids:
        if session_id is None and self._session_id is None and user_id in (None, self._user_id):
            return self._own.use()
        # An empty id is the caller's mistake, and for the service to refuse: it does not mean another session.
        chosen = self._session_id if session_id is None else session_id
        if chosen is None:
            raise ValueError("session_id: another user_id than the client's needs a session_id too")
        return {
            "user_id": self._user_id if user_id is None else user_id,
            "session_id": chosen,
        }

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this client is closed")

    def _farewell(self) -> Optional[Request]:
        """What is to be sent before a client ends."""
        self._closed = True
        self._finalizer.detach()
        return _stop(self._own, self._transport)


def verdict(command: str, settings: Optional[Settings] = None) -> Verdict:
    """See `validate_command`."""
    refused = _native.refuse_command(command, settings, os.fspath(HELPER))
    reason, word = refused or (None, None)
    return Verdict(allowed=refused is None, reason=reason, forbidden_pattern=word)


def _stop(own: OwnSession, transport: Any) -> Optional[Request]:
    if own.pid != os.getpid() or not transport.is_started():
        return None
    request = post("/v1/sandbox/stop", own.ids)
    own.pid = None
    return request


def _leave(own: OwnSession, transport: Any) -> None:
    """After a client that nobody closed."""
    request = _stop(own, transport)
    if request is None:
        return
    try:
        transport.send_last(request)
    except Exception:  # noqa: BLE001  there is nobody to tell; the session expires
        pass
    # Last: where warnings are errors, nothing comes after it.
    warnings.warn("a client was not closed", ResourceWarning, stacklevel=2)
