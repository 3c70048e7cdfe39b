"""What the service answers: dictionaries whose fields are attributes too.

They never ask the service anything. What a sandbox made is shown in a notebook without giving it the notebook:
HTML goes into a frame that runs no scripts and loads nothing from the network.
"""

from __future__ import annotations

import base64
import html
from typing import Any, Optional

# Else a picture's address would tell a stranger what was seen, and when.
CONTENT_POLICY = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">"
)


class Answer(dict):  # type: ignore[type-arg]
    """`answer.name` is `answer["name"]`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no {name!r}") from None


class Session(Answer):
    """A thread session, new (`created`) or found again (`existing`)."""

    session_id: str
    thread_id: str
    status: str
    workspace_dir: str


class CommandResult(Answer):
    """How a command ended; 124 is a time-out."""

    exit_code: int
    stdout: str
    stderr: str
    execution_time_ms: int


class UploadedFile(Answer):
    """A file that is in the workspace now."""

    filename: str
    path: str
    size_bytes: int


class ThreadFile(Answer):
    """One file of a thread session."""

    name: str
    size_bytes: int
    modified: str
    permissions: str


class ThreadFiles(Answer):
    """The files of a thread session, newest first."""

    files: list[ThreadFile]
    total_files: int
    total_size_bytes: int


class Artifact(Answer):
    """A file that a cell made or changed, already stored."""

    path: str
    size_bytes: int
    mime_type: str
    download_url: str
    sha256: str


class WorkspaceFile(Answer):
    """One file of a REPL session."""

    path: str
    size_bytes: int
    mtime: float


class IngestReport(Answer):
    """Which URLs became files, and which did not, and why."""

    status: str
    uploaded: list[str]
    errors: list[dict[str, str]]


class Interrupted(Answer):
    """Whether a cell was running (`interrupted` or `idle`), and what became of the variables."""

    status: str
    state: str


class Verdict(Answer):
    """What the command policy says about a command."""

    allowed: bool
    reason: Optional[str]
    forbidden_pattern: Optional[str]

    def __bool__(self) -> bool:
        return bool(self["allowed"])


class RunResult(Answer):
    """How a cell ended. `status` is not `ok` if the code failed; that never raises."""

    output: str
    stdout: str
    stderr: str
    #: MIME bundles: what was displayed, and the value of the last expression.
    results: list[dict[str, Any]]
    artifacts: list[Artifact]
    status: str
    #: `kept` or `lost`: the truth about the variables after this cell.
    state: str
    error: Optional[dict[str, Any]]
    execution_count: int
    duration_ms: float
    truncated: bool

    @property
    def ok(self) -> bool:
        """Whether the code ran to its end."""
        return bool(self["status"] == "ok")

    def __str__(self) -> str:
        return str(self["output"])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": self["output"], "text/html": self._repr_html_()}

    def _repr_html_(self) -> str:
        parts = [_text(self["stdout"]), _text(self["stderr"])]
        parts += [_bundle(bundle) for bundle in self["results"]]
        if self["error"]:
            parts.append(_text(str(self["error"].get("traceback", ""))))
        parts += [_artifact(artifact) for artifact in self["artifacts"]]
        return "".join(parts)


def _text(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>" if text else ""


def _artifact(artifact: Artifact) -> str:
    link, name = html.escape(artifact["download_url"]), html.escape(artifact["path"])
    return f'<div><a href="{link}">{name}</a> ({int(artifact["size_bytes"])} bytes)</div>'


def _bundle(bundle: dict[str, Any]) -> str:
    for kind in ("image/png", "image/jpeg", "image/gif"):
        if kind in bundle:
            return f'<img src="data:{kind};base64,{html.escape(str(bundle[kind]))}"/>'
    if "image/svg+xml" in bundle:
        # As an image it runs no scripts, unlike inline.
        encoded = base64.b64encode(str(bundle["image/svg+xml"]).encode()).decode()
        return f'<img src="data:image/svg+xml;base64,{encoded}"/>'
    if "text/html" in bundle:
        page = html.escape(CONTENT_POLICY + str(bundle["text/html"]))
        style = "width:100%;height:320px;border:0;resize:vertical;overflow:auto;background:white"
        return f'<iframe sandbox="" style="{style}" srcdoc="{page}"></iframe>'
    return _text(str(bundle.get("text/plain", "")))
