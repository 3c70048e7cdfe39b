"""A double of the host: listens where the kernel dials, speaks its frames, keeps what it hears.

It never sleeps: every wait is for an event and has a deadline.
One `Kernel` owns one kernel process and ends exactly that one.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KERNEL_DIR = os.path.join(ROOT, "kernel")
PYTHON = os.environ.get("CELLBLOCK_TEST_PYTHON", sys.executable)
PATIENCE_SECS = 20.0
PAYLOAD_LIMIT = 61_440


class LinkEnded(Exception):
    """The kernel closed its end."""


class HostLink:
    """The host's end of one link."""

    def __init__(self, sock: socket.socket) -> None:
        """Wrap an accepted socket."""
        self.sock = sock
        self._parts: list[bytes] = []

    def send(self, frame: dict) -> None:
        """Send one frame, in parts if it is long."""
        payload = json.dumps(frame).encode()
        if len(payload) <= PAYLOAD_LIMIT:
            self.sock.send(b"\0" + payload)
            return
        parts = [payload[i : i + PAYLOAD_LIMIT] for i in range(0, len(payload), PAYLOAD_LIMIT)]
        for part in parts[:-1]:
            self.sock.send(b"\1" + part)
        self.sock.send(b"\2" + parts[-1])

    def receive(self, within_secs: float = PATIENCE_SECS) -> dict:
        """The next frame; TimeoutError if none comes in time."""
        deadline = time.monotonic() + within_secs
        while True:
            self.sock.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                packet = self.sock.recv(PAYLOAD_LIMIT + 2)
            except socket.timeout:
                raise TimeoutError("no frame in time") from None
            except ConnectionError:
                packet = b""
            if not packet:
                raise LinkEnded
            if len(packet) > PAYLOAD_LIMIT + 1:
                raise AssertionError("packet over the limit")
            if packet[0] == 0:
                return json.loads(packet[1:])
            self._parts.append(packet[1:])
            if packet[0] == 2:
                payload, self._parts = b"".join(self._parts), []
                if len(payload) > 1_048_576:
                    raise AssertionError("frame over the limit")
                return json.loads(payload)

    def close(self) -> None:
        """End the link."""
        self.sock.close()


class Answer:
    """All frames of one execution."""

    def __init__(self, frames: list[dict]) -> None:
        """The last frame is the end, done or died."""
        self.frames = frames
        self.end = frames[-1]
        self.status = self.end.get("status", self.end["op"])
        self.error = self.end.get("error")
        self.result = self.end.get("result")

    @property
    def plain(self) -> str | None:
        """The text of the result."""
        return (self.result or {}).get("text/plain")

    @property
    def displays(self) -> list[dict]:
        """The bundles shown on the way."""
        return [frame["data"] for frame in self.frames if frame["op"] == "display"]

    def text(self, stream: str | None = None) -> str:
        """The output of one stream, or of both in order."""
        return "".join(
            frame["text"]
            for frame in self.frames
            if frame["op"] == "stream" and stream in (None, frame["stream"])
        )


class Kernel:
    """A kernel process and the host it dials."""

    def __init__(self, command: list[str] | None = None, env: dict[str, str] | None = None) -> None:
        """Listen, start the kernel, and take its first two links."""
        self.dir = tempfile.mkdtemp(prefix="cellblock-test-")
        os.chmod(self.dir, 0o755)
        self.workspace = os.path.join(self.dir, "workspace")
        os.mkdir(self.workspace)
        os.chmod(self.workspace, 0o777)
        self.path = os.path.join(self.dir, "kernel.sock")
        self.execution = 0
        self.request = 0
        self.listener: socket.socket | None = None
        self.listen()
        environment = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "CELLBLOCK_SOCKET": self.path,
            "CELLBLOCK_WORKSPACE": self.workspace,
            "CELLBLOCK_PACKAGES": os.environ.get("CELLBLOCK_TEST_PACKAGES", "/nonexistent"),
            "SECRET_OF_HOST": "no",
            **(env or {}),
        }
        main = os.path.join(KERNEL_DIR, "main.py")
        self.process = subprocess.Popen(
            [*(command or []), PYTHON, "-I", main],
            cwd=self.workspace,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
        self.control: HostLink | None = None
        self.cell: HostLink | None = None
        self.hellos: list[dict] = []
        self.accept_both()

    def listen(self) -> None:
        """Bind the socket, as a service that starts does."""
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        os.chmod(self.path, 0o777)
        self.listener.listen(64)

    def accept(self) -> HostLink:
        """The next link that the kernel dials."""
        self.listener.settimeout(PATIENCE_SECS)
        return HostLink(self.listener.accept()[0])

    def accept_both(self) -> None:
        """Take a control and a cell link; the cell hello may come much later."""
        if self.control is not None:
            self.control.close()
        self.control = self.accept()
        self.hellos.append(self.control.receive())
        self.accept_cell()

    def accept_cell(self, wait_for_hello: bool = True) -> None:
        """Take a new cell link."""
        if self.cell is not None:
            self.cell.close()
        self.cell = self.accept()
        if wait_for_hello:
            self.hellos.append(self.cell.receive())

    def vanish(self) -> None:
        """Be killed, as a service may be: every link and the listener are gone."""
        self.listener.close()
        os.unlink(self.path)
        self.control.close()
        self.cell.close()

    def ask(self, op: str, **fields: object) -> dict:
        """One request on the control link and its answer."""
        self.request += 1
        self.control.send({"op": op, "id": self.request, **fields})
        answer = self.control.receive()
        assert answer["id"] == self.request, answer
        return answer

    def begin(self, code: str, limit: int = 200_000) -> int:
        """Send a cell and do not wait for it."""
        self.execution += 1
        self.cell.send(
            {"op": "execute", "id": self.execution, "code": code, "max_output_bytes": limit}
        )
        return self.execution

    def finish(self, within_secs: float = PATIENCE_SECS) -> Answer:
        """All frames of the execution under way, up to its end."""
        frames = []
        while not frames or frames[-1]["op"] not in ("done", "died"):
            frames.append(self.cell.receive(within_secs))
            if frames[-1]["id"] != self.execution:
                raise AssertionError(f"frame of another execution: {frames[-1]}")
        return Answer(frames)

    def run(self, code: str, limit: int = 200_000) -> Answer:
        """Run one cell to its end."""
        self.begin(code, limit)
        return self.finish()

    def interrupt(self) -> dict:
        """Interrupt the execution under way, as soon as the worker has begun it."""
        deadline = time.monotonic() + PATIENCE_SECS
        while True:
            answer = self.ask("interrupt", execution=self.execution)
            if answer["running"] or time.monotonic() > deadline:
                return answer

    def wait_for_output(self, wanted: str) -> list[dict]:
        """Read frames until `wanted` was printed."""
        frames = []
        while wanted not in "".join(frame.get("text", "") for frame in frames):
            frames.append(self.cell.receive())
        return frames

    def _children(self) -> list[int]:
        """The kernel, where a wrapper was started in its place; else its worker."""
        pid = self.process.pid
        try:
            with open(f"/proc/{pid}/task/{pid}/children") as file:
                return [int(word) for word in file.read().split()]
        except OSError:
            return []

    def close(self) -> None:
        """End the kernel process and remove what it used."""
        if self.process.poll() is None:
            try:
                self.ask("restart")
            except (OSError, LinkEnded, AttributeError, AssertionError):
                pass
            for pid in self._children():
                # Under unshare the kernel is a child, and the end of unshare is not its end.
                os.kill(pid, signal.SIGKILL)
            self.process.kill()
        self.process.wait()
        for link in (self.control, self.cell, self.listener):
            if link is not None:
                link.close()
        shutil.rmtree(self.dir, ignore_errors=True)


def readable(sock: socket.socket, within_secs: float) -> bool:
    """True if something can be read in time."""
    return bool(select.select([sock], [], [], within_secs)[0])
