"""An AutoGen `CodeExecutor`: code blocks of agents run in a Cellblock session."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Optional

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult

from cellblock import AsyncSandboxClient, RunResult

LOST = "\n[variables were lost; files are still there]\n"
SHELLS = ("bash", "sh", "shell")
# Shell blocks run beside the variables, in the same workspace.
RUN_SHELL = """
import subprocess as _subprocess, sys as _sys
_done = _subprocess.run(["bash", "-c", {script!r}])
if _done.returncode: _sys.exit(_done.returncode)
"""


class CellblockExecutor(CodeExecutor):
    """Blocks run in order until one fails. `client` arguments are those of `AsyncSandboxClient`."""

    component_config_schema = None  # made in code, not from a configuration file

    def __init__(self, timeout: Optional[float] = None, **client: Any) -> None:
        self._timeout = timeout
        self._arguments = client
        self._client: Optional[AsyncSandboxClient] = None

    async def start(self) -> None:
        """Opens the client; the sandbox comes with the first block."""
        self._client = self._client or AsyncSandboxClient(**self._arguments)

    async def stop(self) -> None:
        """Removes the session."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def restart(self) -> None:
        """Throws the variables away; files stay."""
        await self.start()
        assert self._client is not None
        await self._client.reset()

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> CodeResult:
        """Runs the blocks; a cancelled token interrupts the one that runs."""
        await self.start()
        output = ""
        for block in code_blocks:
            run = asyncio.ensure_future(self._run(block))
            cancellation_token.link_future(run)
            result = await run
            output += result.output
            if result.state == "lost":
                output += LOST
            if result.status == "timeout":
                raise asyncio.TimeoutError(output)
            if not result.ok:
                return CodeResult(exit_code=_exit_code(result), output=output)
        return CodeResult(exit_code=0, output=output)

    async def _run(self, block: CodeBlock) -> RunResult:
        language = block.language.lower()
        if language not in ("python", "py", *SHELLS):
            raise ValueError(f"language {block.language!r} is not supported: use python or bash")
        code = RUN_SHELL.format(script=block.code) if language in SHELLS else block.code
        assert self._client is not None
        return await self._client.run_code(code, timeout=self._timeout)


def _exit_code(result: RunResult) -> int:
    error = result.error or {}
    if error.get("name") == "SystemExit" and str(error.get("value")).isdigit():
        return int(error["value"])
    return 1


async def main() -> None:
    """Two blocks of one session."""
    async with CellblockExecutor(server_url=os.environ.get("CELLBLOCK_URL")) as executor:
        blocks = [
            CodeBlock(code="open('n', 'w').write('42\\n')", language="python"),
            CodeBlock(code="cat n", language="bash"),
        ]
        print(await executor.execute_code_blocks(blocks, CancellationToken()))


if __name__ == "__main__":
    asyncio.run(main())
