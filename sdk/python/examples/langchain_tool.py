"""A LangChain tool, sync and async, for one conversation."""

from __future__ import annotations

import asyncio
import os

from langchain_core.tools import StructuredTool

from cellblock import AsyncSandboxClient, RunResult, SandboxClient

DESCRIPTION = (
    "Runs Python in a sandbox. Variables and files stay from call to call. "
    "The working directory is /workspace; files written there come back as links."
)


def python_tool(
    client: SandboxClient, async_client: AsyncSandboxClient, session_id: str
) -> StructuredTool:
    """A tool whose calls share one session."""

    def run_python(code: str) -> str:
        return _text(client.run_code(code, session_id=session_id))

    async def run_python_async(code: str) -> str:
        return _text(await async_client.run_code(code, session_id=session_id))

    return StructuredTool.from_function(
        func=run_python, coroutine=run_python_async, name="run_python", description=DESCRIPTION
    )


def _text(result: RunResult) -> str:
    links = [f"[file {file.path}: {file.download_url}]" for file in result.artifacts]
    lost = ["[variables were lost; files are still there]"] if result.state == "lost" else []
    return "\n".join([result.output.rstrip("\n") or "(no output)", *links, *lost])


async def main() -> None:
    """Both ways to call it: `invoke` waits with the sync client, `ainvoke` with the async one."""
    where = {"server_url": os.environ.get("CELLBLOCK_URL")}
    async with AsyncSandboxClient(**where) as async_client:
        with SandboxClient(**where) as client:
            tool = python_tool(client, async_client, session_id="conversation-1")
            print(tool.invoke({"code": "x = 6"}))
            print(await tool.ainvoke({"code": "print(x * 7)"}))
            client.stop(session_id="conversation-1")


if __name__ == "__main__":
    asyncio.run(main())
