"""jupyter_kernel_gateway: the same ipykernel behind HTTP and one WebSocket that stays open."""

from __future__ import annotations

import atexit
import json
import socket
import subprocess
import sys
import time
import urllib.request
import uuid

import websocket

from protocol import expect, serve, timed


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# Nothing here leaves the machine, whatever proxy the environment names.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Kernel:
    """One kernel of the gateway, with its WebSocket."""

    def __init__(self, port: int) -> None:
        """Ask the gateway for it."""
        self.url = f"http://127.0.0.1:{port}/api/kernels"
        request = urllib.request.Request(self.url, data=b"{}", method="POST")
        with DIRECT.open(request, timeout=60) as answer:
            self.kernel_id = json.load(answer)["id"]
        self.session = uuid.uuid4().hex
        address = (
            f"ws://127.0.0.1:{port}/api/kernels/{self.kernel_id}/channels?session_id={self.session}"
        )
        self.link = websocket.create_connection(address, timeout=60, http_no_proxy=["*"])

    def run(self, code: str) -> str:
        """What the cell printed and ended with, once the kernel has replied and is idle again."""
        message_id = uuid.uuid4().hex
        header = {
            "msg_id": message_id,
            "msg_type": "execute_request",
            "session": self.session,
            "username": "u",
            "version": "5.3",
        }
        content = {
            "code": code,
            "silent": False,
            "store_history": False,
            "user_expressions": {},
            "allow_stdin": False,
        }
        message = {
            "header": header,
            "parent_header": {},
            "metadata": {},
            "content": content,
            "channel": "shell",
        }
        self.link.send(json.dumps(message))
        text, replied, idle = "", False, False
        while not (replied and idle):
            answer = json.loads(self.receive())
            if answer["parent_header"].get("msg_id") != message_id:
                continue
            kind, content = answer["msg_type"], answer["content"]
            if kind == "stream":
                text += content["text"]
            elif kind == "execute_result":
                text += content["data"]["text/plain"] + "\n"
            elif kind == "execute_reply":
                expect(content["status"], "ok")
                replied = True
            elif kind == "status":
                idle = content["execution_state"] == "idle"
        return text

    def receive(self) -> str:
        """One message; acknowledged at once, else the gateway's small writes wait 40 ms for it."""
        self.link.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return self.link.recv()

    def end(self) -> None:
        """Let the gateway delete it."""
        self.link.close()
        request = urllib.request.Request(f"{self.url}/{self.kernel_id}", method="DELETE")
        DIRECT.open(request, timeout=60).close()


class Peer:
    """The gateway and a kernel that stays."""

    def __init__(self) -> None:
        """Start both."""
        self.port = free_port()
        command = [
            sys.executable,
            "-m",
            "kernel_gateway",
            f"--KernelGatewayApp.port={self.port}",
        ]
        self.gateway = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        atexit.register(self.end)
        deadline = time.monotonic() + 60
        while True:
            try:
                DIRECT.open(f"http://127.0.0.1:{self.port}/api", timeout=5).close()
                break
            except OSError:
                if time.monotonic() > deadline or self.gateway.poll() is not None:
                    raise
                time.sleep(0.05)
        self.kernel = Kernel(self.port)
        self.kernel.run("x = 0")
        self.x = 0

    def warm(self) -> int:
        """One cell that changes a variable and shows it."""
        self.x += 1
        return timed(lambda: expect(self.kernel.run("x += 1; x"), f"{self.x}\n"))

    def print(self) -> int:
        """100 kB of text."""
        return timed(lambda: expect(len(self.kernel.run("print('x' * 99_999)")), 100_000))

    def first(self) -> int:
        """A new kernel until its first answer."""
        kernels: list[Kernel] = []

        def work() -> None:
            kernels.append(Kernel(self.port))
            expect(kernels[0].run("1 + 1"), "2\n")

        try:
            return timed(work)
        finally:
            for kernel in kernels:
                kernel.end()

    def end(self) -> None:
        """End the gateway, which ends its kernels."""
        self.gateway.terminate()
        try:
            self.gateway.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.gateway.kill()


if __name__ == "__main__":
    peer = Peer()
    serve(
        {name: getattr(peer, name) for name in ["warm", "print", "first"]},
        ["jupyter_kernel_gateway"],
    )
