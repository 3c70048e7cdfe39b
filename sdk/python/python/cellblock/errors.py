"""What can go wrong, by what a caller can do about it.

Code that fails in a sandbox is a result and never raises. Every error here has `status` and `code`, and `request_id` if it is about
a request, in both modes.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional

# The words of the service's problem documents, for dialects that do not send them.
_CODES = {
    401: "unauthorized",
    403: "unauthorized",
    404: "not_found",
    413: "too_large",
    429: "busy",
    503: "unavailable",
    507: "quota_exceeded",
}


class CellblockError(Exception):
    """Whatever goes wrong. `status` is None if there was no answer."""

    def __init__(
        self,
        message: str,
        *,
        status: Optional[int] = None,
        code: Optional[str] = None,
        request_id: Optional[str] = None,
        body: Optional[Mapping[str, Any]] = None,
        retry_after: Optional[float] = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.request_id = request_id
        #: All that the service said, such as `field`, `limit` or `forbidden_pattern`.
        self.body: Mapping[str, Any] = body or {}
        #: Seconds after which it is worth another try, if the service named them.
        self.retry_after = retry_after

    def __str__(self) -> str:
        facts = [str(fact) for fact in (self.status, self.code) if fact is not None]
        if self.request_id is not None:
            facts.append(f"request {self.request_id}")
        message = super().__str__()
        return f"{message} ({', '.join(facts)})" if facts else message


class InvalidRequestError(CellblockError, ValueError):
    """A request that would be refused again: a bad id, path, argument or setting."""


class CommandRefusedError(InvalidRequestError):
    """The command policy does not let this command run."""

    @property
    def forbidden_pattern(self) -> Optional[str]:
        """The forbidden word, if it was one."""
        return self.body.get("forbidden_pattern")


class NoSessionError(InvalidRequestError):
    """The client has no thread session yet, or several and it is not clear which: call `get_or_create_session` or name one."""


class AuthenticationError(CellblockError):
    """No key or a wrong one."""


class NotFoundError(CellblockError):
    """No such file or session."""


class SessionExpiredError(NotFoundError):
    """The thread session is gone; `auto_retry=True` opens it again."""


class LimitError(CellblockError):
    """A file or a workspace is too large, or has too many files."""


class BusyError(CellblockError):
    """Too many cells wait, or too many sandboxes are alive. Try again after `retry_after` seconds."""


class UnavailableError(CellblockError):
    """The service cannot do it now: no sandbox, no store, no service."""


class ConnectionFailedError(UnavailableError, ConnectionError):
    """No connection, or one that ended before the answer did."""


class RequestTimeoutError(CellblockError, TimeoutError):
    """No answer within the client's own time limit. What was asked for may still happen."""


class ServiceError(CellblockError):
    """A fault of the service; its log has it under the request id."""


def of_answer(
    status: int, body: Mapping[str, Any], request_id: Optional[str], retry_after: Optional[float]
) -> CellblockError:
    """The error that an answer stands for."""
    kind = _kind(status, body)
    message = str(body.get("detail") or body.get("error") or f"HTTP {status}")
    code = body.get("code") or _CODES.get(
        status, "internal" if status >= 500 else "invalid_argument"
    )
    return kind(
        message,
        status=status,
        code=code,
        request_id=request_id,
        body=body,
        retry_after=retry_after,
    )


def _kind(status: int, body: Mapping[str, Any]) -> type[CellblockError]:
    if status in (401, 403):
        return AuthenticationError
    if status == 404:
        return SessionExpiredError if _tells_of_session(body) else NotFoundError
    if status in (413, 507):
        return LimitError
    if status == 429:
        return BusyError
    if status in (502, 503, 504):
        return UnavailableError
    if status >= 500:
        return ServiceError
    if status == 400 and "command" in body:
        return CommandRefusedError
    return InvalidRequestError


def _tells_of_session(body: Mapping[str, Any]) -> bool:
    """The threads dialect names the session in its 404 only if the session is what is missing."""
    return "session_id" in body and "filename" not in body
