"""The REPL of both clients, in both modes."""

from __future__ import annotations

import asyncio
import http.server
import io
import os
import tempfile
import threading
import unittest
import urllib.request
from pathlib import Path
from unittest import mock

from cellblock import (
    CellblockError,
    InvalidRequestError,
    NotFoundError,
    RunResult,
)
from support import both_modes


class Repl:
    def test_variables_stay_and_the_last_expression_is_shown(self) -> None:
        client = self.client()
        self.assertEqual(client.run_code("x = 41").output, "")
        result = client.run_code("print('out'); x + 1")
        self.assertEqual((result.output, result.stdout), ("out\n42\n", "out\n"))
        self.assertEqual(result.results, [{"text/plain": "42"}])
        self.assertEqual((result.status, result.state, result.ok), ("ok", "kept", True))
        self.assertEqual(result["execution_count"], result.execution_count)

    def test_code_that_fails_is_a_result_and_no_exception(self) -> None:
        client = self.client()
        failed = client.run_code("import sys; print('e', file=sys.stderr); 1 / 0")
        self.assertEqual((failed.status, failed.error["name"]), ("error", "ZeroDivisionError"))
        self.assertIn("e\n", failed.stderr)
        self.assertFalse(failed.ok)
        slow = client.run_code("while True: pass", timeout=0.3)
        self.assertEqual((slow.status, slow.state), ("timeout", "kept"))
        self.assertEqual(client.run_code("import os; os._exit(3)").state, "lost")

    def test_output_comes_while_the_code_still_runs(self) -> None:
        client = self.client(timeout=20)
        seen = []

        def on_stdout(text: str) -> None:
            seen.append(text)
            # The cell waits for this file, so it cannot have ended.
            client.files.upload(b"", "go")

        code = "import os\nprint('first')\nwhile not os.path.exists('go'): pass\nprint('last')\n7"
        results, errors = [], []
        result = client.run_code(
            code, 20, on_stdout, errors.append, on_result=results.append, on_error=errors.append
        )
        self.assertEqual("".join(seen), "first\nlast\n")
        self.assertEqual((results, errors), ([{"text/plain": "7"}], []))
        self.assertEqual(result.output, "first\nlast\n7\n")

    def test_every_kind_of_event_has_its_callback(self) -> None:
        seen: dict[str, list] = {name: [] for name in ("stderr", "display", "error")}
        callbacks = {f"on_{name}": taken.append for name, taken in seen.items()}
        code = "import sys\nprint('e', file=sys.stderr)\ndisplay('shown')\nraise KeyError('k')"
        result = self.client().run_code(code, **callbacks)
        self.assertEqual("".join(seen["stderr"]), "e\n")
        self.assertEqual(seen["display"], [{"text/plain": "'shown'"}])
        self.assertEqual(seen["error"][0]["name"], "KeyError")
        self.assertEqual(result.status, "error")

    def test_a_callback_that_raises_interrupts_the_cell(self) -> None:
        client = self.client()

        def stop(text: str) -> None:
            raise OSError("no more")

        with self.assertRaisesRegex(OSError, "no more"):
            client.run_code("print('x')\nwhile True: pass", 60, stop)
        # The queue has one place in it: this would wait for the first one's minute.
        self.assertEqual(client.run_code("1 + 1", 5).output, "2\n")

    def test_a_stream_that_is_refused_raises_what_a_call_would(self) -> None:
        with self.assertRaises(InvalidRequestError) as caught:
            self.client().run_code("1", timeout=-1, on_stdout=print)
        self.assertEqual(
            (caught.exception.status, caught.exception.body["field"]), (400, "timeout_seconds")
        )
        with self.assertRaises(NotFoundError):
            self.client().run_code("1", inputs=["nowhere.csv"], on_stdout=print)

    def test_a_running_cell_is_interrupted_from_another_thread(self) -> None:
        client = self.client()
        running = threading.Event()
        results: list[RunResult] = []
        code = "print('on')\nwhile True: pass"

        def run() -> None:
            results.append(client.run_code(code, 60, lambda text: running.set()))

        thread = threading.Thread(target=run)
        thread.start()
        self.assertTrue(running.wait(30))
        self.assertEqual(client.interrupt().status, "interrupted")
        thread.join(30)
        self.assertEqual((results[0].status, results[0].state), ("interrupted", "kept"))
        self.assertEqual(client.interrupt().status, "idle")

    def test_a_reset_forgets_variables_and_keeps_files(self) -> None:
        client = self.client()
        client.run_code("x = 1; open('kept.txt', 'w').write('k')")
        client.reset()
        self.assertEqual(client.run_code("'x' in globals()").output, "False\n")
        self.assertEqual([file.path for file in client.files.list()], ["kept.txt"])

    def test_artifacts_have_links_that_anybody_can_follow(self) -> None:
        client = self.client()
        result = client.run_code("open('report.txt', 'w').write('for you')", link_expires_in=60)
        (artifact,) = result.artifacts
        self.assertEqual((artifact.path, artifact.size_bytes), ("report.txt", 7))
        for link in (artifact.download_url, client.files.link("report.txt", expires_in=60)):
            with urllib.request.urlopen(link) as answer:
                self.assertEqual(answer.read(), b"for you")

    def test_files_go_in_and_out_in_every_form(self) -> None:
        client = self.client()
        large = bytes(range(256)) * 8192
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "large.bin")
            source.write_bytes(large)
            self.assertEqual(client.files.upload(source), "large.bin")
            self.assertEqual(
                client.files.upload(str(source), "b.bin", "deep/down"), "deep/down/b.bin"
            )
            with source.open("rb") as file:
                file.seek(256)
                self.assertEqual(client.files.upload(file, "rest.bin"), "rest.bin")
            for name in ('ü "quoted".txt', '"', '"a', "100%22.txt"):
                self.assertEqual(client.files.upload(b"x", name), name)
                self.assertEqual(client.files.read(name), b"x")
            with self.assertRaisesRegex(InvalidRequestError, "line break"):
                client.files.upload(b"x", "two\nlines")
            target = client.files.download("deep/down/b.bin", folder)
            self.assertEqual((target, Path(target).read_bytes()), (f"{folder}/b.bin", large))
            self.assertEqual(client.files.read("rest.bin"), large[256:])
            with self.assertRaises(NotFoundError):
                client.files.download("none.bin", folder)
            self.assertEqual(
                sorted(path.name for path in Path(folder).iterdir()), ["b.bin", "large.bin"]
            )
        self.assertEqual(client.files.delete(["rest.bin", "none.bin"]), ["rest.bin"])
        with self.assertRaisesRegex(TypeError, "name"):
            client.files.upload(b"x")

    def test_a_bad_path_is_refused_with_its_field(self) -> None:
        with self.assertRaises(InvalidRequestError) as caught:
            self.client().files.link("../x")
        self.assertEqual(
            (caught.exception.code, caught.exception.body["field"]), ("invalid_argument", "path")
        )
        self.assertTrue(caught.exception.request_id)

    def test_urls_become_files_and_bad_ones_are_named(self) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200 if self.path == "/data.csv" else 404)
                self.send_header("content-length", "3")
                self.end_headers()
                self.wfile.write(b"a,b")

            def log_message(self, *_: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}"
        client = self.client()
        report = client.ingest_urls([f"{base}/data.csv", f"{base}/gone"], dest_dir="in")
        self.assertEqual((report.status, report.uploaded), ("partial_success", ["in/data.csv"]))
        self.assertEqual(report.errors[0]["source_url"], f"{base}/gone")
        self.assertEqual(client.run_code("open('in/data.csv').read()").output, "'a,b'\n")

    def test_sessions_are_named_by_call_by_client_or_by_nobody(self) -> None:
        name = f"shared-{self.mode}-{id(self)}"
        one, other = self.client(session_id=name), self.client()
        one.run_code("x = 1")
        self.assertEqual(other.run_code("x", session_id=name).output, "1\n")
        self.assertEqual(other.run_code("'x' in globals()").output, "False\n")
        self.assertEqual(
            other.run_code("'x' in globals()", user_id="else", session_id=name).output, "False\n"
        )
        with self.assertRaisesRegex(ValueError, "session_id"):
            other.run_code("1", user_id="else")
        one.stop()
        self.assertEqual(other.run_code("'x' in globals()", session_id=name).output, "False\n")

    def test_the_own_session_ends_with_the_client(self) -> None:
        client = self.client()
        client.run_code("open('f', 'w').write('x')")
        ids = dict(client._own.ids)
        client.close()
        with self.assertRaisesRegex(RuntimeError, "closed"):
            client.run_code("1")
        self.assertEqual(self.client().files.list(**ids), [])

    def test_ids_that_the_service_refuses_raise(self) -> None:
        for bad in ("a/b", ""):
            with self.assertRaises(CellblockError) as caught:
                self.client(session_id="named").run_code("1", session_id=bad)
            self.assertEqual(
                (caught.exception.status, caught.exception.body["field"]), (400, "session_id")
            )

    def test_an_empty_id_never_means_another_session(self) -> None:
        for ids in ({"session_id": ""}, {"user_id": "", "session_id": "s"}):
            with self.assertRaises(InvalidRequestError) as caught:
                self.client(**ids).run_code("1")
            self.assertEqual(caught.exception.status, 400)
        with self.assertRaises(InvalidRequestError):
            self.client(session_id="s").run_code("1", user_id="")

    def test_an_open_file_is_uploaded_from_where_it_stands_and_a_pipe_is_refused(self) -> None:
        client = self.client()
        file = io.BytesIO(b"head body")
        file.seek(5)
        self.assertEqual(client.files.read(client.files.upload(file, "f")), b"body")
        self.assertEqual(client.files.read(client.files.upload(b"", "empty")), b"")
        reader, writer = os.pipe()
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            with self.assertRaisesRegex(ValueError, "seekable"):
                client.files.upload(pipe, "p")

    def test_a_download_has_the_mode_of_any_new_file(self) -> None:
        client = self.client()
        client.files.upload(b"x", "f")
        with tempfile.TemporaryDirectory() as folder:
            with mock.patch("os.umask", side_effect=AssertionError("the umask is the process's")):
                saved = Path(client.files.download("f", folder))
            usual = Path(folder, "usual")
            usual.write_bytes(b"")
            self.assertEqual(saved.stat().st_mode, usual.stat().st_mode)
            self.assertEqual(len(list(Path(folder).iterdir())), 2)

    def test_a_cell_that_waits_for_others_is_not_given_up(self) -> None:
        client = self.client(timeout=0.1)
        running = threading.Event()
        slow = "print('on')\nimport time; time.sleep(1.5)"
        first = threading.Thread(
            target=client.run_code, args=(slow, 10, lambda text: running.set())
        )
        first.start()
        self.assertTrue(running.wait(30))
        self.assertEqual(client.run_code("1 + 1", timeout=0.5).output, "2\n")
        first.join()


class AsyncRepl:
    def run_async(self, work) -> None:
        async def main() -> None:
            async with self.async_client() as client:
                await work(client)

        asyncio.run(main())

    def test_everything_is_awaited(self) -> None:
        async def work(client) -> None:
            await client.run_code("x = 20")
            result = await client.run_code("open('a.txt', 'w').write('a'); x + 1")
            self.assertEqual(result.output, "21\n")
            self.assertEqual([file.path for file in await client.files.list()], ["a.txt"])
            self.assertEqual(await client.files.upload(b"abc", "b.txt"), "b.txt")
            self.assertEqual(await client.files.read("b.txt"), b"abc")
            self.assertIn("a.txt", await client.files.link("a.txt"))
            self.assertEqual((await client.interrupt()).status, "idle")
            await client.reset()
            await client.get_or_create_session("u", f"async-{id(self)}")
            self.assertEqual((await client.execute("echo hi")).stdout, "hi\n")
            await client.close_session()

        self.run_async(work)

    def test_callbacks_may_be_coroutines(self) -> None:
        async def work(client) -> None:
            seen = []

            async def on_stdout(text: str) -> None:
                await asyncio.sleep(0)
                seen.append(text)

            await client.run_code("print('a', flush=True); print('b')", on_stdout=on_stdout)
            self.assertEqual("".join(seen), "a\nb\n")

        self.run_async(work)

    def test_a_cancelled_task_interrupts_its_cell(self) -> None:
        async def work(client) -> None:
            running = asyncio.Event()
            for streamed in ({"on_stdout": lambda _: running.set()}, {}):
                code = "print('on')\nwhile True: pass"
                task = asyncio.ensure_future(client.run_code(code, 60, **streamed))
                if streamed:
                    await asyncio.wait_for(running.wait(), 30)
                else:
                    await self.until_busy(client)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                self.assertEqual((await client.run_code("1 + 1", 5)).output, "2\n")

        self.run_async(work)

    async def until_busy(self, client) -> None:
        """Asks for the state of the session until its cell runs."""
        ids = client._own.ids
        from cellblock._exchange import get

        def status():
            reply = yield get("/v1/sandbox/status", **ids)
            return reply.json()["state"]

        while await client._run(status()) != "running":
            await asyncio.sleep(0.01)

    def test_one_client_serves_one_event_loop_after_the_other(self) -> None:
        client = self.async_client(session_id=f"loops-{self.mode}")
        for number in range(3):
            code = f"n = {number}; n"
            self.assertEqual(asyncio.run(client.run_code(code)).output, f"{number}\n")
        asyncio.run(client.stop())
        asyncio.run(client.close())


class TestShownInANotebook(unittest.TestCase):
    def result(self, **more) -> RunResult:
        parts = {
            "output": "o",
            "stdout": "",
            "stderr": "",
            "results": [],
            "artifacts": [],
            "error": None,
        }
        return RunResult({**parts, **more})

    def test_pictures_and_tables_are_shown_and_text_is_escaped(self) -> None:
        bundles = [
            {"image/png": "QUJD", "text/plain": "<Figure>"},
            {"text/html": "<table>1</table>"},
        ]
        shown = self.result(stdout="<b>", results=bundles)._repr_html_()
        self.assertIn('src="data:image/png;base64,QUJD"', shown)
        self.assertIn('sandbox="" ', shown)
        self.assertIn("&lt;table&gt;", shown)
        self.assertIn("default-src &#x27;none&#x27;; img-src data:;", shown)
        self.assertIn("<pre>&lt;b&gt;</pre>", shown)
        self.assertNotIn("<table>", shown)

    def test_nothing_that_a_sandbox_made_can_run_in_the_notebook(self) -> None:
        hostile = '"><script>alert(1)</script>'
        artifact = {"path": hostile, "download_url": hostile, "size_bytes": 1}
        bundles = [
            {kind: hostile} for kind in ("image/png", "image/svg+xml", "text/html", "text/plain")
        ]
        error = {"traceback": hostile}
        shown = self.result(stdout=hostile, results=bundles, artifacts=[artifact], error=error)
        self.assertNotIn("<script", shown._repr_html_())

    def test_the_bundle_has_both_forms(self) -> None:
        self.assertEqual(set(self.result()._repr_mimebundle_()), {"text/plain", "text/html"})


both_modes(Repl)
both_modes(AsyncRepl)

if __name__ == "__main__":
    unittest.main()
