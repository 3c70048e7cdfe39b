"""The ready-made glue against real sandboxes, and against the real packages where they are installed."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

from support import both_modes, service

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import anthropic_tool
import openai_tool

EXAMPLES = Path(openai_tool.__file__).parent


def missing(package: str) -> bool:
    return importlib.util.find_spec(package) is None


class Examples:
    def test_openai_calls_get_tool_messages(self) -> None:
        def call(number: int, arguments: str) -> dict:
            function = {"name": "run_python", "arguments": arguments}
            return {"id": f"call_{number}", "type": "function", "function": function}

        calls = [
            call(1, json.dumps({"code": "x = 6; open('r.txt', 'w').write('r')"})),
            call(2, json.dumps({"code": "print(x * 7)"})),
            call(3, "{broken"),
            call(4, json.dumps({"code": 7})),
            call(5, json.dumps({"code": "import os; os._exit(1)"})),
        ]
        client = self.client()
        session = f"openai-{self.mode}"
        self.addCleanup(lambda: self.client().stop(session_id=session))
        made, printed, refused, number, lost = openai_tool.tool_messages(
            client, {"tool_calls": calls}, session
        )
        self.assertEqual((made["role"], made["tool_call_id"]), ("tool", "call_1"))
        self.assertIn("[file r.txt: http", made["content"])
        self.assertEqual(printed["content"], "42\n")
        self.assertIn("code", refused["content"])
        self.assertEqual(number["content"], refused["content"])
        self.assertIn("variables were lost", lost["content"])
        self.assertEqual(openai_tool.tool_messages(client, {"content": "hi"}, session), [])
        self.assertEqual(openai_tool.TOOL["function"]["parameters"]["required"], ["code"])

    def test_anthropic_uses_get_tool_results_with_pictures(self) -> None:
        def use(number: int, code: object) -> dict:
            return {
                "type": "tool_use",
                "id": f"toolu_{number}",
                "name": "run_python",
                "input": {"code": code},
            }

        picture = "class P:\n    def _repr_png_(self): return b'PNG'\nP()"
        content = [
            {"type": "text", "text": "Let me see."},
            use(1, picture),
            use(2, "1 / 0"),
            use(3, 7),
            use(4, "import os; os._exit(1)"),
        ]
        client = self.client()
        session = f"anthropic-{self.mode}"
        self.addCleanup(lambda: self.client().stop(session_id=session))
        shown, failed, refused, lost = anthropic_tool.tool_results(
            client, {"content": content}, session
        )
        self.assertIn("variables were lost", lost["content"][0]["text"])
        self.assertEqual((shown["tool_use_id"], shown["is_error"]), ("toolu_1", False))
        self.assertEqual([block["type"] for block in shown["content"]], ["text", "image"])
        self.assertEqual(shown["content"][1]["source"]["data"], "UE5H")
        self.assertTrue(failed["is_error"])
        self.assertIn("ZeroDivisionError", failed["content"][0]["text"])
        self.assertTrue(refused["is_error"])

    @unittest.skipIf(
        missing("langchain_core"), "the LangChain tool: langchain-core is not installed"
    )
    def test_langchain_invokes_the_tool_in_both_ways(self) -> None:
        from langchain_tool import python_tool

        client, other = self.client(), self.async_client()
        session = f"langchain-{self.mode}"
        self.addCleanup(lambda: self.client().stop(session_id=session))
        tool = python_tool(client, other, session)
        self.assertEqual(set(tool.args), {"code"})
        self.assertEqual(tool.invoke({"code": "x = 2"}), "(no output)")

        async def invoke() -> str:
            try:
                return await tool.ainvoke({"code": "print(x + 1)"})
            finally:
                await other.close()

        self.assertEqual(asyncio.run(invoke()), "3")
        call = {"name": "run_python", "args": {"code": "x"}, "id": "c1", "type": "tool_call"}
        self.assertEqual(tool.invoke(call).content, "2")
        self.assertIn("variables were lost", tool.invoke({"code": "import os; os._exit(1)"}))

    @unittest.skipIf(missing("autogen_core"), "the AutoGen executor: autogen-core is not installed")
    def test_autogen_runs_blocks_until_one_fails(self) -> None:
        from autogen_core import CancellationToken
        from autogen_core.code_executor import CodeBlock
        from autogen_executor import CellblockExecutor

        from support import arguments

        async def work() -> None:
            async with CellblockExecutor(timeout=20, **arguments(self.mode)) as executor:

                async def run(*blocks: tuple[str, str], token=None) -> tuple[int, str]:
                    listed = [CodeBlock(code=code, language=language) for language, code in blocks]
                    result = await executor.execute_code_blocks(
                        listed, token or CancellationToken()
                    )
                    return result.exit_code, result.output

                mixed = await run(
                    ("python", "x = 'a'; open(x, 'w').write('b\\n')"), ("bash", "cat a")
                )
                self.assertEqual(mixed, (0, "2\nb\n"))
                code, text = await run(("sh", "echo no; exit 4"), ("python", "print('never')"))
                self.assertEqual((code, "never" in text), (4, False))
                with self.assertRaisesRegex(ValueError, "fortran"):
                    await run(("fortran", "END"))
                code, text = await run(("python", "import os; os._exit(1)"))
                self.assertIn("variables were lost", text)
                token = CancellationToken()
                task = asyncio.ensure_future(run(("python", "while True: pass"), token=token))
                await asyncio.sleep(0)
                token.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                await executor.restart()
                self.assertEqual(await run(("python", "'x' in globals()")), (0, "False\n"))

        asyncio.run(work())


class TestExamplesAsScripts(unittest.TestCase):
    def test_each_one_runs_as_it_is(self) -> None:
        for name, package in (
            ("openai_tool", "cellblock"),
            ("anthropic_tool", "cellblock"),
            ("langchain_tool", "langchain_core"),
            ("autogen_executor", "autogen_core"),
        ):
            if missing(package):
                continue
            done = subprocess.run(
                [sys.executable, EXAMPLES / f"{name}.py"],
                env={**os.environ, "CELLBLOCK_URL": service().url},
                capture_output=True,
                text=True,
                timeout=120,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("42", done.stdout)


both_modes(Examples)

if __name__ == "__main__":
    unittest.main()
