"""Which thread session a client works with, when many threads or tasks share the client.

Each thread or task works with the session that it opened itself; one that opened none, with the client's latest. Holds
no client alive.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Optional
from weakref import WeakKeyDictionary

from .errors import NoSessionError


@dataclass
class ThreadSession:
    """One open session. Its id changes when it had to be opened again; all who hold it see that."""

    user_id: str
    thread_id: str
    timeout_minutes: int
    session_id: Optional[str] = None


_opened_here: ContextVar[WeakKeyDictionary[Any, Optional[ThreadSession]]] = ContextVar(
    "opened_here"
)


class CurrentSession:
    """The sessions of one client."""

    def __init__(self) -> None:
        self._latest: Optional[ThreadSession] = None

    def find(self) -> Optional[ThreadSession]:
        """The one to work with here, if there is one."""
        here = _opened_here.get(None)
        own = here.get(self) if here is not None else None
        session = own or self._latest
        return session if session is not None and session.session_id is not None else None

    def get(self) -> tuple[ThreadSession, str]:
        """As `find`, with its id, but there must be one."""
        session = self.find()
        session_id = session.session_id if session is not None else None
        if session is None or session_id is None:
            raise NoSessionError("no active session: call get_or_create_session first")
        return session, session_id

    def set(self, session: ThreadSession) -> None:
        """From now on this one, here and for those who opened none."""
        # A copy: other threads and tasks share the mapping that was here before.
        here = WeakKeyDictionary(_opened_here.get(None) or {})
        here[self] = session
        _opened_here.set(here)
        self._latest = session
