"""AutoGen's DockerCommandLineCodeExecutor: one container, each block of code a file to execute.

Keeps no variables between two blocks, so each cell makes its own.
"""

from __future__ import annotations

import asyncio
import os
import tempfile

import docker
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_ext.code_executors.docker import DockerCommandLineCodeExecutor

from protocol import expect, serve, timed


class Peer:
    """The executor that stays, and new ones for first answers."""

    def __init__(self) -> None:
        """Start the one that stays; one event loop serves all."""
        self.loop = asyncio.new_event_loop()
        self.client = docker.from_env()
        self.count = 0
        self.executor = self.new()

    def new(self) -> DockerCommandLineCodeExecutor:
        """Another executor, started."""
        self.count += 1
        executor = DockerCommandLineCodeExecutor(
            image=os.environ["BENCH_IMAGE"],
            container_name=f"{os.environ['BENCH_RUN']}-autogen-{self.count}",
            work_dir=tempfile.mkdtemp(),
            # Its own stop waits ten seconds for a shell that ignores the signal; `end` does not.
            stop_container=False,
        )
        self.loop.run_until_complete(executor.start())
        return executor

    def end(self, executor: DockerCommandLineCodeExecutor) -> None:
        """Remove its container, at once."""
        self.client.containers.get(executor.container_name).remove(force=True)

    def run(self, executor: DockerCommandLineCodeExecutor, language: str, code: str) -> str:
        """One block of code."""
        blocks = [CodeBlock(language=language, code=code)]
        result = self.loop.run_until_complete(
            executor.execute_code_blocks(blocks, CancellationToken())
        )
        expect(result.exit_code, 0)
        return result.output

    def warm(self) -> int:
        """One block that changes a variable and shows it."""
        return timed(
            lambda: expect(
                self.run(self.executor, "python", "x = 0; x += 1; print(x)").strip(),
                "1",
            )
        )

    def print(self) -> int:
        """100 kB of text."""
        return timed(
            lambda: expect(
                len(self.run(self.executor, "python", "print('x' * 99_999)").strip()),
                99_999,
            )
        )

    def program(self) -> int:
        """A bash that does nothing."""
        return timed(lambda: self.run(self.executor, "bash", "true"))

    def first(self) -> int:
        """A new executor until its first answer."""
        executors: list[DockerCommandLineCodeExecutor] = []

        def work() -> None:
            executors.append(self.new())
            expect(self.run(executors[0], "python", "print(1 + 1)").strip(), "2")

        try:
            return timed(work)
        finally:
            for executor in executors:
                self.end(executor)


if __name__ == "__main__":
    peer = Peer()
    try:
        serve(
            {name: getattr(peer, name) for name in ["warm", "print", "program", "first"]},
            ["autogen-ext"],
        )
    finally:
        peer.end(peer.executor)
