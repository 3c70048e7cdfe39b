"""The official MCP client against the real binary, over HTTP and over stdio.

It needs the package `mcp` and root or a Docker engine; CELLBLOCK_BINARY names the binary.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from contextlib import asynccontextmanager

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

try:
    from mcp.client.streamable_http import streamable_http_client
except ImportError:  # its name before version 1.24
    from mcp.client.streamable_http import streamablehttp_client as streamable_http_client

BINARY = os.environ["CELLBLOCK_BINARY"]
TOOLS = {
    "run_python",
    "get_file_link",
    "sandbox_run",
    "sandbox_open",
    "sandbox_exec",
    "sandbox_exec_read",
    "sandbox_exec_wait",
    "sandbox_fs_write",
    "sandbox_fs_read",
    "sandbox_fs_list",
    "sandbox_fs_delete",
    "sandbox_close",
}
PATIENCE_SECS = 60


def settings(work_root: str) -> dict[str, str]:
    """An environment in which the binary disturbs nobody."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {
        **kept,
        "WORK_ROOT": work_root,
        "PORT": "0",
        "EMBEDDED_S3_ADDR": "127.0.0.1:0",
        "SANDBOX_BACKEND": os.environ.get("CELLBLOCK_TEST_BACKEND", "embedded"),
        "SANDBOX_POOL_SIZE": "1",
    }


def text_of(result: object) -> str:
    """All text that a tool answered."""
    return "".join(block.text for block in result.content if block.type == "text")


def structured(result: object) -> dict:
    """What a tool of the tools dialect answered."""
    return json.loads(text_of(result))


class McpTest(unittest.TestCase):
    """A work root of its own for each test."""

    def setUp(self) -> None:
        self.work_root = tempfile.mkdtemp(prefix="cellblock-mcp-")

    def tearDown(self) -> None:
        self.end_service()
        purged = subprocess.run(
            [BINARY, "purge"], env=settings(self.work_root), cwd="/", capture_output=True, text=True
        )
        shutil.rmtree(self.work_root, ignore_errors=True)
        self.assertEqual(purged.returncode, 0, purged.stderr)

    def end_service(self) -> None:
        """Nothing to end where the client ends the server."""

    async def use_everything(self, session: ClientSession) -> None:
        """The same work, whatever the transport."""
        listed = await session.list_tools()
        self.assertEqual({tool.name for tool in listed.tools}, TOOLS)
        for tool in listed.tools:
            schema = getattr(tool, "inputSchema", None) or tool.input_schema
            self.assertEqual(schema["type"], "object", tool.name)

        async def call(name: str, **arguments: object) -> object:
            return await session.call_tool(name, arguments)

        await call("run_python", code="x = 41")
        self.assertEqual(text_of(await call("run_python", code="x + 1")), "42\n")
        raised = await call("run_python", code="1 / 0")
        self.assertTrue(getattr(raised, "isError", None) or raised.is_error)
        self.assertIn("ZeroDivisionError", text_of(raised))
        made = await call("run_python", code="open('report.txt', 'w').write('for you')")
        self.assertIn("[file report.txt (7 bytes)", text_of(made))
        link = text_of(await call("get_file_link", path="report.txt")).split()[0]
        with urllib.request.urlopen(link) as answer:
            self.assertEqual(answer.read(), b"for you")

        opened = structured(await call("sandbox_open"))
        self.assertFalse(opened["created"], "run_python has opened it")
        sandbox = opened["sandbox_id"]
        ran = structured(await call("sandbox_exec", sandbox_id=sandbox, cmd=["cat", "report.txt"]))
        self.assertEqual((ran["stdout"], ran["exit_code"]), ("for you", 0))
        read = structured(await call("sandbox_fs_read", sandbox_id=sandbox, path="report.txt"))
        self.assertEqual(read["contents"], "for you")
        fresh = structured(await call("sandbox_run", code="import os; print(os.listdir())"))
        self.assertEqual(fresh["stdout"], "[]\n")
        wrong = await call("sandbox_exec", sandbox_id="sbx_none", cmd=["true"])
        self.assertIn("sandbox_open", text_of(wrong))
        self.assertEqual(structured(await call("sandbox_close", sandbox_id=sandbox)), {"ok": True})

    async def use_pictures(self, session: ClientSession) -> None:
        """Small ones are shown, large ones are linked; neither floods the model."""
        code = "class P:\n    def __init__(s, n): s.n = n\n    def _repr_png_(s): return b'\\x89PNG' + b'x' * s.n\nP({})"
        small = await session.call_tool("run_python", {"code": code.format(100)})
        self.assertEqual([block.type for block in small.content], ["text", "image"])
        large = await session.call_tool("run_python", {"code": code.format(300_000)})
        self.assertEqual([block.type for block in large.content], ["text", "text"])
        self.assertLess(len(text_of(large)), 2_000)
        link = re.search(r"https?://[^\s\]]+", text_of(large)).group()
        with urllib.request.urlopen(link) as answer:
            self.assertEqual(len(answer.read()), 300_004)
        many = code.format(0) + "\nfor _ in range(20): display(P(20_000))"
        many = await session.call_tool("run_python", {"code": many})
        shown = [block for block in many.content if block.type == "image"]
        self.assertLess(sum(len(block.data) for block in shown), 80_000)
        self.assertEqual(len(many.content), 21, "none is left out")

    async def use_much(self, session: ClientSession) -> None:
        """What is displayed is told; bytes that are not text are linked."""
        shown = await session.call_tool("run_python", {"code": "display({'a': 1})"})
        self.assertEqual(text_of(shown), "{'a': 1}\n")
        await session.call_tool(
            "run_python", {"code": "open('b.bin', 'wb').write(b'\\xff' * 300_000)"}
        )
        sandbox = structured(await session.call_tool("sandbox_open", {}))["sandbox_id"]
        read = await session.call_tool("sandbox_fs_read", {"sandbox_id": sandbox, "path": "b.bin"})
        self.assertLess(len(text_of(read)), 2_000)
        with urllib.request.urlopen(structured(read)["link"]) as answer:
            self.assertEqual(len(answer.read()), 300_000)


class TestOverHttp(McpTest):
    """Streamable HTTP at /mcp of a running service."""

    def start(self, **more: str) -> str:
        environment = {**settings(self.work_root), **more}
        self.service = subprocess.Popen(
            [BINARY, "serve"], env=environment, cwd="/", stderr=subprocess.DEVNULL
        )
        path = os.path.join(self.work_root, "service.json")
        deadline = time.monotonic() + PATIENCE_SECS
        while not os.path.exists(path):
            self.assertLess(time.monotonic(), deadline, "the service does not listen")
            self.assertIsNone(self.service.poll(), "the service ended")
        with open(path) as file:
            return f"http://{json.load(file)['address']}/mcp"

    def end_service(self) -> None:
        self.service.kill()
        self.service.wait()

    @asynccontextmanager
    async def session(self, url: str):
        async with streamable_http_client(url) as streams:
            async with ClientSession(streams[0], streams[1]) as session:
                await session.initialize()
                yield session

    def test_all_tools_work(self) -> None:
        async def work() -> None:
            async with self.session(url) as session:
                await self.use_everything(session)
                await self.use_pictures(session)
                await self.use_much(session)

        url = self.start()
        asyncio.run(work())

    def test_two_clients_have_a_session_each(self) -> None:
        async def work() -> None:
            async with self.session(url) as one, self.session(url) as other:
                await one.call_tool("run_python", {"code": "x = 1"})
                seen = await other.call_tool("run_python", {"code": "'x' in globals()"})
                self.assertEqual(text_of(seen), "False\n")

        url = self.start()
        asyncio.run(work())

    def test_a_key_and_a_local_origin_are_needed_like_everywhere(self) -> None:
        def status(url: str, **headers: str) -> int:
            request = urllib.request.Request(url, b"{}", headers, method="POST")
            try:
                return urllib.request.urlopen(request).status
            except urllib.error.HTTPError as error:
                return error.code

        url = self.start(SANDBOX_API_KEY="secret")
        self.assertEqual(status(url), 401)
        self.assertNotIn(status(url, **{"X-API-Key": "secret"}), (401, 403))
        self.end_service()
        os.remove(os.path.join(self.work_root, "service.json"))
        url = self.start()
        self.assertEqual(status(url, Origin="http://evil.example"), 403)


class TestOverStdio(McpTest):
    """`cellblock mcp`, as a desktop agent starts it."""

    @asynccontextmanager
    async def session(self):
        server = StdioServerParameters(
            command=BINARY, args=["mcp"], env=settings(self.work_root), cwd="/"
        )
        async with stdio_client(server) as (read, write):
            async with ClientSession(read, write) as session:
                await session.initialize()
                yield session

    def test_all_tools_work(self) -> None:
        async def work() -> None:
            async with self.session() as session:
                await self.use_everything(session)
                await self.use_pictures(session)

        asyncio.run(work())

    def test_variables_are_there_again_for_the_next_client(self) -> None:
        async def run(code: str) -> str:
            async with self.session() as session:
                return text_of(await session.call_tool("run_python", {"code": code}))

        asyncio.run(run("x = 7"))
        self.assertEqual(asyncio.run(run("x")), "7\n")

    def test_two_agents_have_a_server_each_with_no_settings_at_all(self) -> None:
        async def work() -> None:
            environment = settings(self.work_root)
            del environment["WORK_ROOT"]
            environment["XDG_DATA_HOME"] = self.work_root
            server = StdioServerParameters(command=BINARY, args=["mcp"], env=environment, cwd="/")
            async with stdio_client(server) as one, stdio_client(server) as other:
                async with ClientSession(*one) as first, ClientSession(*other) as second:
                    for number, session in enumerate((first, second)):
                        await session.initialize()
                        await session.call_tool("run_python", {"code": f"x = {number}"})
                    for number, session in enumerate((first, second)):
                        seen = await session.call_tool("run_python", {"code": "x"})
                        self.assertEqual(text_of(seen), f"{number}\n")

        asyncio.run(work())
        for folder in ("mcp", "mcp-2"):
            work_root = os.path.join(self.work_root, "cellblock", folder)
            subprocess.run([BINARY, "purge"], env=settings(work_root), cwd="/", check=True)


if __name__ == "__main__":
    unittest.main()
