"""A Python tool for models that speak the OpenAI chat format: its definition, and answers to the model's calls."""

from __future__ import annotations

import json
from typing import Any

from cellblock import SandboxClient

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
    try:
        code = json.loads(call["function"]["arguments"])["code"]
    except (ValueError, KeyError, TypeError):
        content = 'the arguments must be {"code": "..."}'
    else:
        result = client.run_code(code, session_id=session_id)
        content = result.output or "(no output)"
        for artifact in result.artifacts:
            content += f"\n[file {artifact.path}: {artifact.download_url}]"
        if result.state == "lost":
            content += "\n[variables were lost; files are still there]"
    return {"role": "tool", "tool_call_id": call["id"], "content": content}
