"""Which thread session a client works with, when many threads or tasks share the client.

Each thread or task works with the session that it opened itself or that a call names. One that opened none works with the
client's only open one, never with one of several: commands of one conversation must not run in the sandbox of another.
Holds no client alive.
"""

from __future__ import annotations

import os
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Optional
from weakref import WeakKeyDictionary

from .errors import NoSessionError


@dataclass(eq=False)
class ThreadSession:
    """One open session. Its id changes when it had to be opened again; all who hold it see that."""

    user_id: str
    thread_id: str
    timeout_minutes: int
    session_id: str = ""
    #: Closed by this client. It is not to come back by itself then.
    is_closed: bool = False
    #: The process that made it, if this client did rather than find it. A fork's child must not end what its parent made.
    made_by_pid: Optional[int] = None


_opened_here: ContextVar[WeakKeyDictionary[Any, ThreadSession]] = ContextVar("opened_here")


class CurrentSession:
    """The sessions of one client."""

    def __init__(self) -> None:
        self._by_thread: dict[str, ThreadSession] = {}
        # Also by ids from before a session had to be opened again: callers may still have those.
        self._by_id: dict[str, ThreadSession] = {}

    def of_thread(self, user_id: str, thread_id: str, timeout_minutes: int) -> ThreadSession:
        """The open session of a conversation, or a new one to be opened."""
        session = self._by_thread.get(thread_id) or ThreadSession(user_id, thread_id, 0)
        session.user_id, session.timeout_minutes = user_id, timeout_minutes
        return session

    def by_id(self, session_id: str) -> Optional[ThreadSession]:
        """The open session that this client opened under that id."""
        return self._by_id.get(session_id)

    def here(self) -> Optional[ThreadSession]:
        """The one to work with here. NoSessionError if that could be any of several."""
        opened = _opened_here.get(None)
        own = opened.get(self) if opened is not None else None
        if own is not None:
            return None if own.is_closed else own
        sessions = list(self._by_thread.values())
        if len(sessions) > 1:
            raise NoSessionError(
                f"no session was opened in this thread or task, and the client has {len(sessions)} open ones: "
                "name one by session_id, or call get_or_create_session here",
                code="no_session",
            )
        return sessions[0] if sessions else None

    def made_here(self) -> list[ThreadSession]:
        """Those that end with the client."""
        sessions = list(self._by_thread.values())
        return [session for session in sessions if session.made_by_pid == os.getpid()]

    def add(self, session: ThreadSession) -> None:
        """It is open, under its present id."""
        self._by_thread[session.thread_id] = session
        self._by_id[session.session_id] = session

    def use_here(self, session: ThreadSession) -> None:
        """From now on this thread or task works with it."""
        # A copy: other threads and tasks share the mapping that was here before.
        opened = WeakKeyDictionary(_opened_here.get(None) or {})
        opened[self] = session
        _opened_here.set(opened)

    def remove(self, session: ThreadSession) -> None:
        """It is closed, for all who hold it."""
        session.is_closed = True
        self._by_thread.pop(session.thread_id, None)
        for session_id, other in list(self._by_id.items()):
            if other is session:
                self._by_id.pop(session_id, None)
