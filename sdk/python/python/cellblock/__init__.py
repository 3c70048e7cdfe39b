"""Cellblock from Python: the same client for a core inside this process and for a service over HTTP."""

from ._client_base import verdict as _verdict
from .aio import AsyncFiles, AsyncSandboxClient
from .answers import (
    Answer,
    Artifact,
    CommandResult,
    IngestReport,
    Interrupted,
    RunResult,
    Session,
    ThreadFile,
    ThreadFiles,
    UploadedFile,
    Verdict,
    WorkspaceFile,
)
from .client import Files, SandboxClient
from .errors import (
    AuthenticationError,
    BusyError,
    CellblockError,
    CommandRefusedError,
    ConnectionFailedError,
    InvalidRequestError,
    LimitError,
    NoSessionError,
    NotFoundError,
    RequestTimeoutError,
    ServiceError,
    SessionExpiredError,
    UnavailableError,
)


def validate_command(command: str) -> Verdict:
    """What the command policy of a service with default settings says about a command: the service's own code, here."""
    return _verdict(command)


__all__ = [
    "Answer",
    "Artifact",
    "AsyncFiles",
    "AsyncSandboxClient",
    "AuthenticationError",
    "BusyError",
    "CellblockError",
    "CommandRefusedError",
    "CommandResult",
    "ConnectionFailedError",
    "Files",
    "IngestReport",
    "Interrupted",
    "InvalidRequestError",
    "LimitError",
    "NoSessionError",
    "NotFoundError",
    "RequestTimeoutError",
    "RunResult",
    "SandboxClient",
    "ServiceError",
    "Session",
    "SessionExpiredError",
    "ThreadFile",
    "ThreadFiles",
    "UnavailableError",
    "UploadedFile",
    "Verdict",
    "WorkspaceFile",
    "validate_command",
]
