"""llm-sandbox with its Docker backend: one container, each run a file copied in and an exec.

Its plain session keeps no variables. Its interactive one does, but polls for results every 0.1 s
and more, so the plain one is the faster mode and the one measured; and without the set-up of a
virtual environment, which the package lets callers skip for a ready image.
"""

from __future__ import annotations

import itertools
import os

from llm_sandbox import SandboxSession

from protocol import expect, serve, timed

NUMBERS = itertools.count(1)


class Sandbox:
    """One session, opened."""

    def __init__(self) -> None:
        """Open it on an image that is there already."""
        name = f"{os.environ['BENCH_RUN']}-llm-{next(NUMBERS)}"
        self.session = SandboxSession(
            lang="python",
            image=os.environ["BENCH_IMAGE"],
            skip_environment_setup=True,
            runtime_configs={"name": name, "network_mode": "none"},
        )
        self.session.open()

    def run(self, code: str) -> str:
        """One run."""
        result = self.session.run(code)
        expect(result.exit_code, 0)
        return result.stdout

    def end(self) -> None:
        """Remove the container at once; `close` would wait ten seconds for a shell to stop."""
        self.session.container.remove(force=True)


class Peer:
    """The session that stays, and new ones for first answers."""

    def __init__(self) -> None:
        """Open the one that stays."""
        self.sandbox = Sandbox()

    def warm(self) -> int:
        """One run that changes a variable and shows it."""
        return timed(lambda: expect(self.sandbox.run("x = 0; x += 1; print(x)"), "1\n"))

    def print(self) -> int:
        """100 kB of text."""
        return timed(lambda: expect(len(self.sandbox.run("print('x' * 99_999)")), 100_000))

    def program(self) -> int:
        """A bash that does nothing."""
        return timed(
            lambda: expect(self.sandbox.session.execute_command("bash -c true").exit_code, 0)
        )

    def first(self) -> int:
        """A new session until its first answer."""
        sandboxes: list[Sandbox] = []

        def work() -> None:
            sandboxes.append(Sandbox())
            expect(sandboxes[0].run("print(1 + 1)"), "2\n")

        try:
            return timed(work)
        finally:
            for sandbox in sandboxes:
                sandbox.end()


if __name__ == "__main__":
    peer = Peer()
    try:
        serve(
            {name: getattr(peer, name) for name in ["warm", "print", "program", "first"]},
            ["llm-sandbox"],
        )
    finally:
        peer.sandbox.end()
