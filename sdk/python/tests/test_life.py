"""What becomes of a core inside a process: at exit, after a crash, after a fork, beside another, without its client."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import warnings
import weakref
from pathlib import Path
from unittest import mock

from cellblock import SandboxClient
from cellblock._local import core_for, stop_all
from support import BACKEND, LOCAL, Mode, is_alive, private_work_roots, sandbox_pids, wait_for

START = f"from cellblock import SandboxClient\nclient = SandboxClient('local', **{LOCAL!r})\n"
SAY_ROOT = "from cellblock._local import _slots\nprint(next(iter(_slots.values())).core.work_root, flush=True)\n"


def python(code: str, **more) -> subprocess.Popen:
    """Another process in local mode."""
    return subprocess.Popen(
        [sys.executable, "-c", START + code], stdout=subprocess.PIPE, text=True, **more
    )


def output(code: str, **more) -> str:
    process = python(code, **more)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 0, process.returncode
    return text


@unittest.skipIf(BACKEND == "docker", "looks at embedded sandboxes")
class TestLife(unittest.TestCase):
    def test_at_exit_nothing_is_left(self) -> None:
        root = output(
            f"client.run_code('1', session_id='named')\nclient.get_or_create_session('u', 't')\n{SAY_ROOT}"
        ).strip()
        self.assertFalse(Path(root).exists())
        self.assertEqual(sandbox_pids(root), [])

    def test_at_exit_in_the_middle_of_a_cell_nothing_is_left(self) -> None:
        code = (
            "import threading\nstarted = threading.Event()\n"
            "code = \"print('on')\\nwhile True: pass\"\n"
            "run = lambda: client.run_code(code, 60, lambda text: started.set())\n"
            "threading.Thread(target=run, daemon=True).start()\nstarted.wait()\n"
        )
        root = output(code + SAY_ROOT).strip()
        self.assertFalse(Path(root).exists())

    def test_what_a_crash_left_is_gone_after_the_next_start(self) -> None:
        crashed = python(f"client.run_code('1')\n{SAY_ROOT}import time; time.sleep(60)\n")
        root = crashed.stdout.readline().strip()
        left = sandbox_pids(root)
        self.assertEqual(len(left), 1)
        crashed.kill()
        crashed.communicate()
        self.assertEqual(sandbox_pids(root), left)
        again = python("client.run_code('1')\ninput()\n", stdin=subprocess.PIPE)
        wait_for("the next start to clear it", lambda: not Path(root).exists())
        self.assertFalse(any(is_alive(pid) for pid in left))
        again.communicate("\n", timeout=60)

    def test_two_processes_work_beside_each_other(self) -> None:
        code = "client.run_code('x = 1', session_id='same')\nprint('ready', flush=True)\ninput()\n"
        code += "print(client.run_code('x', session_id='same').output)\n"
        both = [python(code, stdin=subprocess.PIPE) for _ in range(2)]
        for process in both:
            self.assertEqual(process.stdout.readline(), "ready\n")
        for process in both:
            self.assertEqual(process.communicate("\n", timeout=60)[0].strip(), "1")

    def test_a_work_root_of_the_callers_keeps_files_and_no_process(self) -> None:
        with tempfile.TemporaryDirectory() as root:
            start = f"client = SandboxClient('local', work_root={root!r}, **{LOCAL!r})\n"
            output(
                start + "client.run_code(\"open('f', 'w').write('kept'); x = 1\", session_id='s')\n"
            )
            self.assertEqual(sandbox_pids(root), [])
            again = start + "print(client.run_code(\"open('f').read()\", session_id='s'))\n"
            self.assertEqual(output(again).strip(), "'kept'")

    def test_files_stay_on_this_machine_whatever_the_environment_knows_of_other_stores(
        self,
    ) -> None:
        elsewhere = {
            "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_PROFILE": "production",
            "S3_ENDPOINT_URL": "http://127.0.0.1:1",
            "S3_PUBLIC_ENDPOINT_URL": "https://files.example.com",
            "S3_ACCESS_KEY_ID": "key",
            "S3_SECRET_ACCESS_KEY": "secret",
        }
        code = (
            "import urllib.request\n"
            "made = client.run_code(\"open('f', 'w').write('here')\")\n"
            "print(urllib.request.urlopen(made.artifacts[0].download_url).read().decode())\n"
        )
        self.assertEqual(output(code, env={**os.environ, **elsewhere}), "here\n")

    def test_a_store_that_the_caller_names_is_used(self) -> None:
        named = {"s3_endpoint_url": "http://127.0.0.1:1", "log_level": "off"}
        named.update(s3_access_key_id="key", s3_secret_access_key="secret")
        code = (
            f"client = SandboxClient('local', **{LOCAL!r}, **{named!r})\n"
            "made = client.run_code(\"open('f', 'w').write('there')\")\n"
            "print(made.sync['error'] is not None)\n"
        )
        self.assertEqual(output(code), "True\n")

    def test_clients_with_the_same_settings_share_a_core(self) -> None:
        one, other = (SandboxClient("local", session_id="shared", **LOCAL) for _ in range(2))
        one.run_code("x = 5")
        self.assertEqual(other.run_code("x").output, "5\n")
        self.assertIs(one._transport._core, other._transport._core)
        threads = {thread.name for thread in threading.enumerate()}
        self.assertFalse(any("cellblock" in name for name in threads))
        one.stop()
        one.close()
        other.close()

    def test_ctrl_c_ends_the_wait_and_the_cell(self) -> None:
        code = (
            "import os, signal, sys\n"
            "def on(text): os.kill(os.getpid(), signal.SIGINT)\n"
            "for callback in (on, None):\n"
            "    try:\n"
            "        if callback is None: threading.Timer(0.5, on, ['']).start()\n"
            "        client.run_code(\"print('x')\\nwhile True: pass\", 60, callback)\n"
            "    except KeyboardInterrupt:\n"
            "        print(client.run_code('1 + 1', 10))\n"
        )
        self.assertEqual(output("import threading\n" + code).split(), ["2", "2"])


class ForkAndCollection:
    def listed(self, client: SandboxClient, ids: dict) -> bool:
        return any(client.files.list(**ids))

    def test_a_collected_client_leaves_no_session_and_no_connection(self) -> None:
        looker = self.client()
        client = SandboxClient(**self.arguments())
        client.run_code("open('f', 'w').write('x')")
        ids = dict(client._own.ids)
        self.assertTrue(self.listed(looker, ids))
        gone = weakref.ref(client)
        with self.assertWarnsRegex(ResourceWarning, "not closed"):
            del client
            gc.collect()
        self.assertIsNone(gone())
        wait_for("the session's end", lambda: not self.listed(looker, ids))

    def test_a_client_that_is_collected_where_warnings_are_errors_leaves_no_session(self) -> None:
        looker = self.client()
        client = SandboxClient(**self.arguments())
        client.run_code("open('f', 'w').write('x')")
        ids = dict(client._own.ids)
        with (
            warnings.catch_warnings(),
            mock.patch("sys.unraisablehook"),
            mock.patch("sys.excepthook"),
        ):
            warnings.simplefilter("error")
            del client
            gc.collect()
        wait_for("the session's end", lambda: not self.listed(looker, ids))

    def in_child(self, work) -> str:
        """What `work` gives in a forked child, which ends without any clean-up of Python's."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(writer, work().encode())
            except BaseException as error:  # noqa: BLE001
                os.write(writer, f"{type(error).__name__}: {error}".encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            said = pipe.read()
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        return said

    def test_a_forked_child_is_no_trouble_to_its_parent(self) -> None:
        client = self.client()
        client.run_code("x = 1")
        roots = private_work_roots()
        said = self.in_child(lambda: client.run_code("x").output)
        if self.mode == "local":
            self.assertIn("UnavailableError", said)
            self.assertIn("fork", said)
        else:
            self.assertEqual(said, "1\n")
        self.assertEqual(client.run_code("x").output, "1\n")
        self.assertEqual(private_work_roots(), roots)

    def test_a_forked_child_that_lets_go_of_the_client_ends_nothing(self) -> None:
        client = self.client()
        client.run_code("x = 2")

        def let_go() -> str:
            client.close()
            stop_all()
            return "let go"

        self.assertEqual(self.in_child(let_go), "let go")
        self.assertEqual(client.run_code("x").output, "2\n")

    def test_workers_of_multiprocessing_leave_nothing(self) -> None:
        code = (
            "import multiprocessing as mp\n"
            "def work(number):\n"
            "    return client.run_code(f'{number} * 2', session_id=f'w{number}').output\n"
            "with mp.get_context('fork').Pool(2) as pool:\n"
            "    print(sorted(pool.map(work, range(3), chunksize=1)))\n"
            "    pool.close(); pool.join()\n"
        )
        before = private_work_roots()
        arguments = self.arguments()
        start = f"from cellblock import SandboxClient\nclient = SandboxClient(**{arguments!r})\n"
        done = subprocess.run(
            [sys.executable, "-c", start + code], capture_output=True, text=True, timeout=120
        )
        self.assertEqual(done.stdout.strip(), str(["0\n", "2\n", "4\n"]), done.stderr)
        self.assertEqual(private_work_roots() - before, set())

    def arguments(self) -> dict:
        from support import arguments

        return arguments(self.mode)


class ForkAndCollectionInLocalMode(ForkAndCollection, Mode, unittest.TestCase):
    mode = "local"

    def test_no_core_is_started_only_to_take_leave_of_it(self) -> None:
        for leave in (SandboxClient.close, lambda client: client._finalizer()):
            client = SandboxClient("local", worker_id="never-started", **LOCAL)
            client._ids(None, None)
            with mock.patch("cellblock._local.core_for", side_effect=AssertionError("started")):
                leave(client)

    def test_a_client_that_is_collected_in_a_thread_of_the_core_is_no_trouble(self) -> None:
        looker, left = self.client(), []

        async def work() -> None:
            client = SandboxClient(**self.arguments())
            client.run_code("open('f', 'w').write('x')")
            left.append(dict(client._own.ids))
            done = threading.Event()
            forgotten = [client]
            del client

            def answered(value: object, error: object) -> None:
                forgotten.clear()
                gc.collect()
                done.set()

            core = looker._transport._core
            core.request_soon("GET", "/health", [], None, True, answered)
            self.assertTrue(await asyncio.to_thread(done.wait, 30))

        looker.run_code("1")
        asyncio.run(work())
        wait_for("the session's end", lambda: not self.listed(looker, left[0]))

    def test_a_child_does_not_hold_the_parents_lock(self) -> None:
        client = self.client()
        client.run_code("1")
        core = core_for(client._settings)
        lock = os.readlink(f"/proc/self/fd/{core.lock_fd}")
        self.assertTrue(lock.startswith(str(core.work_root)))
        child = os.fork()
        if child == 0:
            held = [
                os.readlink(f"/proc/self/fd/{fd}")
                for fd in os.listdir("/proc/self/fd")
                if _exists(fd)
            ]
            os._exit(int(lock in held))
        self.assertEqual(os.waitpid(child, 0)[1], 0)


def _exists(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


class ForkAndCollectionInRemoteMode(ForkAndCollection, Mode, unittest.TestCase):
    mode = "remote"

    def test_a_forked_child_leaves_the_connections_of_a_parents_tasks_alone(self) -> None:
        """However it lets go of them: by use, by closing, by a collection or by its end."""
        code = (
            "import asyncio, gc, os\n"
            "from cellblock import AsyncSandboxClient\n"
            "def use(client): asyncio.run(client.run_code('x', session_id=name))\n"
            "def close(client): asyncio.run(client.close())\n"
            "def collect(client): clients.clear(); del client; gc.collect()\n"
            "def end(client): pass\n"
            f"name, clients = 'deaf-{os.getpid()}', []\n"
            "async def main():\n"
            "    for let_go in (use, close, collect, end):\n"
            "        client = AsyncSandboxClient('remote', URL)\n"
            "        clients.append(client)\n"
            "        await client.run_code('x = 1', session_id=name)\n"
            "        (kept,) = client._transport._idle\n"
            "        child = os.fork()\n"
            "        if child == 0:\n"
            "            asyncio._set_running_loop(None)\n"
            "            let_go(client)\n"
            "            del client, kept\n"
            "            return 'child'\n"
            "        await asyncio.to_thread(os.waitpid, child, 0)\n"
            "        await client.health()\n"
            "        run = client.run_code('x', session_id=name)\n"
            "        assert (await asyncio.wait_for(run, 10)).output == '1\\n'\n"
            "        assert client._transport._idle == [kept]\n"
            "        await client.close()\n"
            "        clients.clear()\n"
            "    print('not deaf')\n"
        )
        url = self.arguments()["server_url"]
        main = (
            "import sys\n"
            "coroutine = main()\n"
            "loop = asyncio.new_event_loop()\n"
            "if loop.run_until_complete(coroutine) != 'child': loop.close()\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", f"URL = {url!r}\n" + code + main],
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.assertEqual(done.stdout.strip(), "not deaf", done.stderr)
        SandboxClient("remote", url).stop(session_id=f"deaf-{os.getpid()}")

    def test_parent_and_child_do_not_meet_in_a_session_that_neither_had(self) -> None:
        client = self.client()

        def use() -> str:
            client.run_code("x = 1")
            client.close()
            return "used"

        self.assertEqual(self.in_child(use), "used")
        self.assertEqual(client.run_code("'x' in globals()").output, "False\n")

    def test_a_child_that_used_its_parents_session_does_not_end_it(self) -> None:
        client = self.client()
        client.run_code("x = 3")

        def use() -> str:
            seen = client.run_code("x").output
            client.close()
            return seen

        self.assertEqual(self.in_child(use), "3\n")
        self.assertEqual(client.run_code("x").output, "3\n")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unittest.main()
