"""A Python tool for models that speak the OpenAI chat format: its definition, and answers to the model's calls."""

from __future__ import annotations

import json
import os
from typing import Any, Optional

from cellblock import RunResult, SandboxClient

TOOL = {
    "type": "function",
    "function": {
        "name": "run_python",
        "description": (
            "Runs Python in a sandbox of this conversation. Variables and files stay from call to call. "
            "The working directory is /workspace; files written there come back as links."
        ),
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "Python source to run"}},
            "required": ["code"],
            "additionalProperties": False,
        },
    },
}


def tool_messages(
    client: SandboxClient, message: dict[str, Any], session_id: str
) -> list[dict[str, Any]]:
    """One `tool` message for each call in an assistant's message, to be appended to the conversation."""
    return [_answer(client, call, session_id) for call in message.get("tool_calls") or []]


def _answer(client: SandboxClient, call: dict[str, Any], session_id: str) -> dict[str, Any]:
    code = _code(call["function"]["arguments"])
    if code is None:
        content = 'the arguments must be {"code": "..."}'
    else:
        content = _text(client.run_code(code, session_id=session_id))
    return {"role": "tool", "tool_call_id": call["id"], "content": content}


def _code(arguments: str) -> Optional[str]:
    try:
        code = json.loads(arguments)["code"]
    except (ValueError, KeyError, TypeError):
        return None
    return code if isinstance(code, str) else None


def _text(result: RunResult) -> str:
    text = result.output or "(no output)"
    text += "".join(f"\n[file {file.path}: {file.download_url}]" for file in result.artifacts)
    if result.state == "lost":
        text += "\n[variables were lost; files are still there]"
    return text


if __name__ == "__main__":
    call = {"name": "run_python", "arguments": json.dumps({"code": "print(6 * 7)"})}
    assistant = {"tool_calls": [{"id": "call_1", "type": "function", "function": call}]}
    with SandboxClient(server_url=os.environ.get("CELLBLOCK_URL")) as client:
        print(tool_messages(client, assistant, session_id="conversation-1"))
        client.stop(session_id="conversation-1")
