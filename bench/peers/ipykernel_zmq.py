"""ipykernel, spoken to by its own client over ZMQ: no container, no HTTP, no TCP."""

from __future__ import annotations

import atexit
import os
import tempfile

from jupyter_client.manager import KernelManager

from protocol import expect, serve, timed


class Kernel:
    """One kernel process and a client that is connected to it."""

    def __init__(self) -> None:
        """Start it and wait until it answers; local sockets, since they are faster than TCP."""
        folder = tempfile.mkdtemp()
        self.manager = KernelManager(transport="ipc", ip=os.path.join(folder, "kernel"))
        self.manager.start_kernel()
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, code: str) -> str:
        """What the cell printed and ended with, once the kernel is idle again."""
        text: list[str] = []

        def note(message: dict) -> None:
            kind, content = message["header"]["msg_type"], message["content"]
            if kind == "stream":
                text.append(content["text"])
            elif kind == "execute_result":
                text.append(content["data"]["text/plain"] + "\n")

        reply = self.client.execute_interactive(
            code, store_history=False, output_hook=note, timeout=60
        )
        expect(reply["content"]["status"], "ok")
        return "".join(text)

    def end(self) -> None:
        """Kill it, at once."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


class Peer:
    """The kernel that stays, and works that need one of their own."""

    def __init__(self) -> None:
        """Start the kernel that stays."""
        self.kernel = Kernel()
        atexit.register(self.kernel.end)
        self.kernel.run("x = 0")
        self.x = 0

    def warm(self) -> int:
        """One cell that changes a variable and shows it."""
        self.x += 1
        return timed(lambda: expect(self.kernel.run("x += 1; x"), f"{self.x}\n"))

    def print(self) -> int:
        """100 kB of text."""
        return timed(lambda: expect(len(self.kernel.run("print('x' * 99_999)")), 100_000))

    def program(self) -> int:
        """A bash that does nothing, by the shell escape that IPython offers."""
        return timed(lambda: expect(self.kernel.run("!bash -c true"), ""))

    def first(self) -> int:
        """A new kernel until its first answer."""
        kernels: list[Kernel] = []

        def work() -> None:
            kernels.append(Kernel())
            expect(kernels[0].run("1 + 1"), "2\n")

        try:
            return timed(work)
        finally:
            for kernel in kernels:
                kernel.end()

    def pandas(self) -> int:
        """The first import in a kernel that is up."""
        kernel = Kernel()
        try:
            return timed(
                lambda: expect(kernel.run("import pandas; pandas.DataFrame().size"), "0\n")
            )
        finally:
            kernel.end()

    def reset(self) -> int:
        """A restart until the kernel is ready; its variables are gone."""

        def work() -> None:
            self.kernel.manager.restart_kernel(now=True)
            self.kernel.client.wait_for_ready(timeout=60)

        took = timed(work)
        self.kernel.run("x = 0")
        self.x = 0
        return took

    def memory(self) -> int:
        """PSS of the idle kernel, in bytes."""
        with open(f"/proc/{self.kernel.manager.provisioner.pid}/smaps_rollup") as rollup:
            return sum(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss:"))


if __name__ == "__main__":
    peer = Peer()
    names = ["warm", "print", "program", "first", "pandas", "reset", "memory"]
    serve({name: getattr(peer, name) for name in names}, ["ipykernel", "pyzmq"])
