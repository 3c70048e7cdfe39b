"""A Python tool for models that speak the Anthropic messages format: its definition, and answers with pictures."""

from __future__ import annotations

import os
from typing import Any

from cellblock import RunResult, SandboxClient

TOOL = {
    "name": "run_python",
    "description": (
        "Runs Python in a sandbox of this conversation. Variables and files stay from call to call. "
        "The working directory is /workspace; plots are shown, files written there come back as links."
    ),
    "input_schema": {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "Python source to run"}},
        "required": ["code"],
    },
}


def tool_results(
    client: SandboxClient, message: dict[str, Any], session_id: str
) -> list[dict[str, Any]]:
    """One `tool_result` block for each `tool_use` block of an assistant's message: the content of the next user message."""
    uses = [block for block in message["content"] if block["type"] == "tool_use"]
    return [_answer(client, use, session_id) for use in uses]


def _answer(client: SandboxClient, use: dict[str, Any], session_id: str) -> dict[str, Any]:
    answer = {"type": "tool_result", "tool_use_id": use["id"]}
    code = use["input"].get("code")
    if not isinstance(code, str):
        return {**answer, "content": "the input must have a text `code`", "is_error": True}
    result = client.run_code(code, session_id=session_id)
    return {**answer, "content": _blocks(result), "is_error": not result.ok}


def _blocks(result: RunResult) -> list[dict[str, Any]]:
    text = result.output or "(no output)"
    text += "".join(f"\n[file {file.path}: {file.download_url}]" for file in result.artifacts)
    if result.state == "lost":
        text += "\n[variables were lost; files are still there]"
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text}]
    for bundle in result.results:
        if "image/png" in bundle:
            source = {"type": "base64", "media_type": "image/png", "data": bundle["image/png"]}
            blocks.append({"type": "image", "source": source})
    return blocks


if __name__ == "__main__":
    use = {"type": "tool_use", "id": "toolu_1", "name": "run_python"}
    assistant = {"content": [{**use, "input": {"code": "print(6 * 7)"}}]}
    with SandboxClient(server_url=os.environ.get("CELLBLOCK_URL")) as client:
        print(tool_results(client, assistant, session_id="conversation-1"))
        client.stop(session_id="conversation-1")
