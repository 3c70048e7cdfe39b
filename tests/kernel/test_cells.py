"""What a cell sees and what comes back: echo, errors, await, results, streams.

Never starts a kernel per test: all tests of a class share one, as cells of one session do.
"""

from __future__ import annotations

import base64
import unittest

from host import Kernel


class KernelTest(unittest.TestCase):
    """One kernel for all tests of the class."""

    env: dict[str, str] = {}

    @classmethod
    def setUpClass(cls) -> None:
        """Start the kernel."""
        cls.kernel = Kernel(env=cls.env)

    @classmethod
    def tearDownClass(cls) -> None:
        """End it."""
        cls.kernel.close()

    def run_ok(self, code: str, **options: int):
        """Run a cell that must end well."""
        answer = self.kernel.run(code, **options)
        self.assertEqual(answer.status, "ok", answer.error)
        return answer


class TestEcho(KernelTest):
    """The REPL side of a cell."""

    def test_last_expression_is_echoed(self) -> None:
        self.assertEqual(self.run_ok("a = 20\na + 1").plain, "21")

    def test_none_is_not_echoed(self) -> None:
        self.assertIsNone(self.run_ok("None").result)

    def test_only_the_last_expression_is_echoed(self) -> None:
        answer = self.run_ok("1\n2\n3")
        self.assertEqual((answer.plain, answer.text()), ("3", ""))

    def test_underscore_is_the_last_result(self) -> None:
        self.run_ok("6 * 7")
        self.assertEqual(self.run_ok("_ + 1").plain, "43")

    def test_empty_and_comment_cells_are_fine(self) -> None:
        for code in ("", "   \n", "# nothing"):
            self.assertIsNone(self.run_ok(code).result)

    def test_execution_count_grows_by_one(self) -> None:
        first = self.run_ok("1").end["execution_count"]
        self.assertEqual(self.run_ok("1").end["execution_count"], first + 1)

    def test_long_code_comes_in_parts(self) -> None:
        answer = self.run_ok("long = '''" + "x" * 300_000 + "'''\nlen(long)")
        self.assertEqual(answer.plain, "300000")

    def test_long_results_come_in_parts(self) -> None:
        answer = self.run_ok("'y' * 150_000")
        self.assertEqual(len(answer.plain), 150_002)

    def test_results_over_the_output_limit_are_cut(self) -> None:
        answer = self.run_ok("'y' * 150_000", limit=1_000)
        self.assertEqual((len(answer.plain), answer.end["truncated"]), (1_000, True))

    def test_main_is_a_real_module(self) -> None:
        code = (
            "import pickle, sys\nclass Point: x = 1\nassert __name__ == '__main__'\n"
            "type(pickle.loads(pickle.dumps(Point()))) is sys.modules['__main__'].Point"
        )
        self.assertEqual(self.run_ok(code).plain, "True")

    def test_workspace_is_importable_even_in_the_same_clock_tick(self) -> None:
        for number in range(5):
            self.assertEqual(self.kernel.run(f"import fresh{number}").status, "error")
            with open(f"{self.kernel.workspace}/fresh{number}.py", "w") as file:
                file.write("value = 5\n")
            self.assertEqual(self.run_ok(f"import fresh{number}; fresh{number}.value").plain, "5")

    def test_kernel_modules_are_not_importable_by_generic_names(self) -> None:
        for name in ("main", "worker", "frames"):
            self.assertEqual(self.kernel.run(f"import {name}").error["name"], "ModuleNotFoundError")

    def test_environment_names_no_kernel_setting(self) -> None:
        code = "import os; [k for k in os.environ if k.startswith('CELLBLOCK')], os.environ['HOME']"
        self.assertEqual(self.run_ok(code).plain, "([], '/tmp')")

    def test_future_imports_hold_for_later_cells(self) -> None:
        self.run_ok("from __future__ import annotations")
        self.assertEqual(
            self.run_ok("def g(a: Nope): pass\ng.__annotations__").plain, "{'a': 'Nope'}"
        )

    def test_a_current_directory_that_vanished_becomes_the_workspace(self) -> None:
        self.run_ok("import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')")
        self.assertEqual(self.run_ok("os.getcwd()").plain, repr(self.kernel.workspace))

    def test_the_users_current_directory_is_kept(self) -> None:
        self.run_ok("import os; os.makedirs('sub', exist_ok=True); os.chdir('sub')")
        self.assertTrue(self.run_ok("os.getcwd()").plain.endswith("/sub'"))
        self.run_ok("os.chdir('..')")


class TestAwait(KernelTest):
    """Top-level await."""

    def test_await_works_at_the_top_level(self) -> None:
        self.assertEqual(self.run_ok("import asyncio\nawait asyncio.sleep(0, 'hi')").plain, "'hi'")

    def test_tasks_go_on_in_the_next_awaiting_cell(self) -> None:
        self.run_ok(
            "import asyncio\nasync def later():\n    await asyncio.sleep(0)\n    return 7\n"
            "task = asyncio.get_running_loop().create_task(later()) if 0 else None\n"
            "async def start(): return asyncio.ensure_future(later())\ntask = await start()"
        )
        self.assertEqual(self.run_ok("await task").plain, "7")

    def test_asyncio_run_works_too(self) -> None:
        self.assertEqual(self.run_ok("import asyncio\nasyncio.run(asyncio.sleep(0, 3))").plain, "3")
        self.assertEqual(self.run_ok("await asyncio.sleep(0, 4)").plain, "4")

    def test_tracebacks_of_awaiting_cells_show_only_the_users_frames(self) -> None:
        answer = self.kernel.run("async def bad():\n    raise ValueError('no')\nawait bad()")
        self.assertNotIn("asyncio", answer.error["traceback"])
        self.assertIn("await bad()", answer.error["traceback"])

    def test_interrupting_an_await_keeps_the_loop_usable(self) -> None:
        self.kernel.begin("import asyncio; print('in', flush=True); await asyncio.sleep(60)")
        self.kernel.wait_for_output("in")
        self.assertTrue(self.kernel.interrupt()["running"])
        self.assertEqual(self.kernel.finish().status, "interrupted")
        self.assertEqual(self.run_ok("await asyncio.sleep(0, 1)").plain, "1")

    def test_a_broken_loop_is_replaced(self) -> None:
        self.run_ok("import os; os.closerange(3, 256)")
        self.assertEqual(self.run_ok("import asyncio; await asyncio.sleep(0, 2)").plain, "2")


class TestErrors(KernelTest):
    """Exceptions as the REPL would show them."""

    def error_of(self, code: str) -> dict:
        answer = self.kernel.run(code)
        self.assertEqual(answer.status, "error")
        return answer.error

    def test_traceback_has_source_lines_and_no_kernel_frames(self) -> None:
        self.run_ok("def divide(a):\n    return a / 0")
        error = self.error_of("divide(3)")
        self.assertEqual((error["name"], error["value"]), ("ZeroDivisionError", "division by zero"))
        self.assertIn("return a / 0", error["traceback"])
        self.assertIn('File "<cell ', error["traceback"])
        self.assertNotIn("cellblock", error["traceback"])
        self.assertEqual(error["traceback"].count("File "), 2)

    def test_kernel_frames_deep_in_a_traceback_are_hidden(self) -> None:
        self.assertNotIn("cellblock", self.error_of("import sys; sys.stdout.write(5)")["traceback"])

    def test_syntax_errors_look_as_in_the_repl(self) -> None:
        error = self.error_of("x = (1,\ny = ")
        self.assertEqual(error["name"], "SyntaxError")
        self.assertTrue(error["traceback"].startswith('  File "<cell '), error["traceback"])

    def test_nothing_runs_if_a_later_line_does_not_compile(self) -> None:
        answer = self.kernel.run("print('ran')\nreturn 5")
        self.assertEqual((answer.error["name"], answer.text()), ("SyntaxError", ""))

    def test_chained_exceptions_are_kept(self) -> None:
        error = self.error_of(
            "try:\n    1/0\nexcept Exception as e:\n    raise KeyError('k') from e"
        )
        self.assertIn("direct cause", error["traceback"])
        self.assertIn("ZeroDivisionError", error["traceback"])

    def test_deep_recursion_is_described_within_bounds(self) -> None:
        error = self.error_of("def f(n): return f(n + 1)\nf(0)")
        self.assertEqual(error["name"], "RecursionError")
        self.assertLess(len(error["traceback"]), 100_100)

    def test_mutual_recursion_with_a_high_limit_is_described_within_bounds(self) -> None:
        code = (
            "import sys; old = sys.getrecursionlimit(); sys.setrecursionlimit(8000)\n"
            "def ping(n): return pong(n)\ndef pong(n): return ping(n)\n"
            "try:\n    ping(0)\nfinally:\n    sys.setrecursionlimit(old)"
        )
        error = self.error_of(code)
        self.assertLess(len(error["traceback"]), 100_100)
        self.assertIn("line 5", error["traceback"])

    def test_a_repr_that_raises_is_an_error(self) -> None:
        error = self.error_of("class R:\n    def __repr__(self): raise RuntimeError('r')\nR()")
        self.assertEqual(error["name"], "RuntimeError")
        self.assertIn("__repr__", error["traceback"])

    def test_an_exception_that_cannot_be_printed_is_survived(self) -> None:
        code = "class E(Exception):\n    def __str__(self): raise ValueError\n    __repr__ = __str__\nraise E"
        self.assertEqual(self.error_of(code)["name"], "E")

    def test_huge_messages_are_cut(self) -> None:
        error = self.error_of("raise ValueError('v' * 1_000_000)")
        self.assertLess(len(error["value"]), 20_100)
        self.assertLess(len(error["traceback"]), 100_100)

    def test_control_characters_cannot_burst_the_frame(self) -> None:
        error = self.error_of("raise ValueError('\\x01' * 1_000_000)")
        self.assertEqual(error["name"], "ValueError")
        self.kernel.run("'%s' % ('\\x01' * 1_000_000)", limit=10_000_000)
        answer = self.run_ok(
            "type('Q', (), {'__repr__': lambda s: chr(1) * 690_000})()", limit=10**7
        )
        self.assertTrue(answer.end["truncated"])

    def test_system_exit_ends_the_cell_and_keeps_the_variables(self) -> None:
        self.run_ok("kept = 1")
        self.run_ok("exit()")
        self.run_ok("import sys; sys.exit(0)")
        error = self.error_of("import sys; sys.exit(3)")
        self.assertEqual((error["name"], error["value"]), ("SystemExit", "3"))
        self.assertEqual(self.run_ok("kept").plain, "1")

    def test_input_is_refused_with_advice(self) -> None:
        error = self.error_of("input('name? ')")
        self.assertEqual(error["name"], "EOFError")
        self.assertIn("no terminal", error["value"])
        self.assertIn("no terminal", self.error_of("import getpass; getpass.getpass()")["value"])

    def test_stdin_is_empty(self) -> None:
        self.assertEqual(
            self.run_ok("import sys; sys.stdin.read(), list(sys.stdin)").plain, "('', [])"
        )

    def test_inspect_finds_the_source_of_a_cell(self) -> None:
        self.run_ok("def shown():\n    return 'me'")
        self.assertIn("return 'me'", self.run_ok("import inspect; inspect.getsource(shown)").plain)

    def test_patched_builtins_and_json_do_not_break_the_kernel(self) -> None:
        code = (
            "import builtins, json, os, time\n"
            "for m, n in ((json, 'dumps'), (json, 'loads'), (os, 'write'), (os, 'getpid'),"
            " (time, 'monotonic'), (os, 'fstat')):\n    setattr(m, n, None)\n"
            "saved = {n: getattr(builtins, n) for n in ('len', 'type', 'isinstance', 'repr', 'str', 'print')}\n"
            "for n in saved: setattr(builtins, n, None)\n"
        )
        self.run_ok(code)
        self.assertEqual(self.run_ok("40 + 2").plain, "42")
        self.assertEqual(self.error_of("1 / 0")["name"], "ZeroDivisionError")
        self.run_ok("for n, v in saved.items(): setattr(builtins, n, v)")
        self.run_ok("import importlib; importlib.reload(json)")


class TestRichResults(KernelTest):
    """MIME bundles."""

    def test_rich_forms_join_the_repr(self) -> None:
        code = (
            "class H:\n    def _repr_html_(self): return '<b>x</b>'\n"
            "    def _repr_png_(self): return b'png'\n    def _repr_json_(self): return {'a': 1}\n"
            "    def _repr_svg_(self): raise ValueError\n    def __repr__(self): return 'H!'\nH()"
        )
        result = self.run_ok(code).result
        png = base64.b64encode(b"png").decode()
        self.assertEqual(
            result,
            {
                "text/plain": "H!",
                "text/html": "<b>x</b>",
                "image/png": png,
                "application/json": '{"a": 1}',
            },
        )

    def test_classes_are_not_asked(self) -> None:
        code = "class C:\n    def _repr_html_(self): return 'no'\nC"
        self.assertEqual(list(self.run_ok(code).result), ["text/plain"])

    def test_mimebundles_are_used(self) -> None:
        code = (
            "class M:\n    def _repr_mimebundle_(self, include=None, exclude=None):\n"
            "        return {'text/markdown': '*m*'}, {}\nM()"
        )
        self.assertEqual(self.run_ok(code).result["text/markdown"], "*m*")

    def test_display_sends_bundles_in_order_with_output(self) -> None:
        answer = self.run_ok("print('a'); display({'k': 1}, 2); print('b')")
        self.assertEqual(
            [f["op"] for f in answer.frames], ["stream", "display", "display", "stream", "done"]
        )
        self.assertEqual(answer.displays[0], {"text/plain": "{'k': 1}"})

    def test_values_that_are_too_large_are_left_out_and_text_says_so(self) -> None:
        code = "class B:\n    def _repr_html_(self): return 'h' * 800_000\n    def __repr__(self): return 'B'\nB()"
        result = self.run_ok(code).result
        self.assertNotIn("text/html", result)
        self.assertIn("text/html of 800000 bytes is left out", result["text/plain"])

    def test_many_large_values_still_fit_one_frame(self) -> None:
        code = (
            "class L:\n    def _repr_html_(self): return 'h' * 600_000\n"
            "    def _repr_png_(self): return b'p' * 400_000\nL()"
        )
        self.assertEqual(len(self.run_ok(code).result), 2)


if __name__ == "__main__":
    unittest.main()
