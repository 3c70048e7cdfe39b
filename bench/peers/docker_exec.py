"""The `docker exec` design: a REPL that stays up in a container, and for each cell a client script.

Asks the engine over its API, which is faster than the command line tool; the client script imports
nothing but `socket`.
"""

from __future__ import annotations

import atexit
import os
import time

import docker

from protocol import expect, serve, timed

DAEMON = """
import ast, contextlib, io, socket
server = socket.socket(socket.AF_UNIX); server.bind("/tmp/repl.sock"); server.listen(8)
names = {}
while True:
    link, _ = server.accept()
    tree = ast.parse(link.makefile("rb").read()); printed = io.StringIO()
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        value = last and eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    text = printed.getvalue() + (f"{value!r}\\n" if value is not None else "")
    link.sendall(text.encode()); link.close()
"""
CLIENT = """
import socket, sys
link = socket.socket(socket.AF_UNIX); link.connect("/tmp/repl.sock")
link.sendall(sys.argv[1].encode()); link.shutdown(socket.SHUT_WR)
while data := link.recv(65536): sys.stdout.buffer.write(data)
"""


class Repl:
    """One container with the daemon in it."""

    def __init__(self, client: docker.DockerClient, name: str) -> None:
        """Start the container and run a first cell as soon as the daemon listens."""
        self.container = client.containers.run(
            os.environ["BENCH_IMAGE"],
            ["python3", "-I", "-S", "-c", DAEMON],
            name=name,
            network_mode="none",
            detach=True,
        )
        deadline = time.monotonic() + 30
        while self.exec(["test", "-S", "/tmp/repl.sock"])[0] != 0:
            if time.monotonic() > deadline:
                raise TimeoutError("the daemon does not listen")

    def exec(self, command: list[str]) -> tuple[int, bytes]:
        """One `docker exec`."""
        return self.container.exec_run(command)

    def run(self, code: str) -> str:
        """One cell by one `docker exec` of the client script."""
        status, output = self.exec(["python3", "-I", "-S", "-c", CLIENT, code])
        expect(status, 0)
        return output.decode()

    def end(self) -> None:
        """Remove the container, at once."""
        self.container.remove(force=True)


class Peer:
    """The container that stays, and new ones for first answers."""

    def __init__(self) -> None:
        """Start the one that stays."""
        self.client = docker.from_env()
        self.count = 0
        self.repl = self.new()
        atexit.register(self.repl.end)
        self.repl.run("x = 0")
        self.x = 0

    def new(self) -> Repl:
        """Another container of this run."""
        self.count += 1
        return Repl(self.client, f"{os.environ['BENCH_RUN']}-exec-{self.count}")

    def warm(self) -> int:
        """One cell that changes a variable and shows it."""
        self.x += 1
        return timed(lambda: expect(self.repl.run("x += 1; x"), f"{self.x}\n"))

    def print(self) -> int:
        """100 kB of text."""
        return timed(lambda: expect(len(self.repl.run("print('x' * 99_999)")), 100_000))

    def program(self) -> int:
        """A bash that does nothing."""
        return timed(lambda: expect(self.repl.exec(["bash", "-c", "true"])[0], 0))

    def first(self) -> int:
        """A new container until its first answer."""
        repls: list[Repl] = []

        def work() -> None:
            repls.append(self.new())
            expect(repls[0].run("1 + 1"), "2\n")

        try:
            return timed(work)
        finally:
            for repl in repls:
                repl.end()


if __name__ == "__main__":
    peer = Peer()
    serve(
        {name: getattr(peer, name) for name in ["warm", "print", "program", "first"]},
        ["docker"],
    )
