"""The kernel as PID 1 of its own namespaces, under attack from inside.

Needs root, unshare, setpriv and prlimit; skipped with a reason otherwise.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import unittest
from unittest import mock

import host
from test_cells import KernelTest

# A uid that nothing else uses, because RLIMIT_NPROC counts all processes of a uid.
UID = "61432"
COMMAND = [
    *("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--ipc", "--net"),
    *("prlimit", "--nproc=64", "--nofile=1024", "--core=0"),
    *("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--no-new-privs"),
    "--bounding-set=-all",
]
SYSTEM_PYTHON = "/usr/bin/python3"


def why_not() -> str:
    """The reason why these tests cannot run here, or nothing."""
    if os.geteuid() != 0:
        return "needs root to make namespaces"
    for tool in ("unshare", "setpriv", "prlimit", SYSTEM_PYTHON):
        if shutil.which(tool) is None:
            return f"needs {tool}"
    if subprocess.run([*COMMAND, "true"], stderr=subprocess.DEVNULL).returncode != 0:
        return "namespaces are not allowed here"
    return ""


REASON = why_not()


@unittest.skipIf(REASON, REASON)
class TestAsInit(KernelTest):
    """What only PID 1 can stand."""

    @classmethod
    def setUpClass(cls) -> None:
        with mock.patch.object(host, "PYTHON", SYSTEM_PYTHON):
            cls.kernel = host.Kernel(command=COMMAND)

    def assert_dies_and_recovers(self, code: str, number: int = 9) -> host.Answer:
        answer = self.kernel.run(code)
        self.assertEqual((answer.end["op"], answer.end["code"]), ("died", number), answer.end)
        self.kernel.accept_cell()
        self.assertEqual(self.run_ok("'alive'").plain, "'alive'")
        return answer

    def processes(self) -> str:
        return self.run_ok(
            "import os; sorted(int(p) for p in os.listdir('/proc') if p.isdigit())"
        ).plain

    def test_it_is_init_and_the_worker_is_its_only_company(self) -> None:
        self.assertEqual(self.run_ok("import os; os.getppid(), os.getuid()").plain, f"(1, {UID})")
        self.assertEqual(len(self.processes().split(",")), 2)

    def test_kill_9_minus_1_by_the_worker(self) -> None:
        answer = self.kernel.run(
            "import os, subprocess; subprocess.Popen(['sleep', '60']); print('before'); os.kill(-1, 9); print('after')"
        )
        # The kernel spares the caller of kill(-1), so the worker itself lives on.
        self.assertEqual((answer.status, answer.text()), ("ok", "before\nafter\n"))

    def test_kill_9_minus_1_by_a_child(self) -> None:
        answer = self.assert_dies_and_recovers(
            "import subprocess; print('before'); subprocess.run('kill -9 -1', shell=True)"
        )
        self.assertEqual(answer.text(), "before\n")

    def test_signals_to_init_do_nothing(self) -> None:
        code = "import os\nfor s in range(1, 65):\n    if s not in (32, 33): os.kill(1, s)\n'sent'"
        self.assertEqual(self.run_ok(code).plain, "'sent'")
        self.assertEqual(self.kernel.ask("ping")["op"], "ok")

    def test_the_supervisors_memory_and_descriptors_are_closed_to_the_worker(self) -> None:
        for name in ("mem", "fd", "environ", "maps"):
            code = f"import os; os.listdir('/proc/1/{name}') if '{name}' == 'fd' else open('/proc/1/{name}', 'rb').read(1)"
            self.assertEqual(self.kernel.run(code).error["name"], "PermissionError", name)

    def test_the_worker_may_look_at_itself(self) -> None:
        code = (
            "open('/proc/self/oom_score_adj').read().strip(), len(os.listdir('/proc/self/fd')) > 3"
        )
        self.assertEqual(self.run_ok("import os; " + code).plain, "('1000', True)")

    def test_a_fork_bomb_ends_with_a_restart(self) -> None:
        code = (
            "import os\nprint('bomb')\nwhile True:\n    try:\n        if os.fork() == 0:\n            while True:\n"
            "                try: os.fork()\n                except OSError: pass\n    except OSError: pass"
        )
        self.kernel.begin(code)
        self.kernel.wait_for_output("bomb")
        self.kernel.ask("restart")
        self.assertEqual(self.kernel.finish().end["op"], "died")
        self.kernel.accept_cell()
        self.assertEqual(len(self.processes().split(",")), 2)

    def test_a_fork_bomb_that_outlives_its_worker_is_ended(self) -> None:
        code = (
            "import os, time\n"
            "if os.fork() == 0:\n    while True:\n        try: os.fork()\n        except OSError: pass\n"
            "time.sleep(0.3); os._exit(1)"
        )
        self.assert_dies_and_recovers(code, 1)
        self.assertEqual(len(self.processes().split(",")), 2)

    def test_orphans_are_reaped(self) -> None:
        code = "import subprocess; subprocess.run('for i in 1 2 3 4 5; do (sleep 0.01 &) ; done; sleep 0.1', shell=True);"
        self.run_ok(code)
        self.assertEqual(len(self.processes().split(",")), 2)

    def test_daemons_are_gone_after_a_restart(self) -> None:
        self.run_ok(
            "import subprocess; subprocess.Popen('setsid sh -c \"trap : TERM INT HUP; sleep 300 & wait; sleep 300\" &', shell=True);"
        )
        self.kernel.ask("restart")
        self.assertEqual(self.kernel.cell.receive()["op"], "died")
        self.kernel.accept_cell()
        self.assertEqual(len(self.processes().split(",")), 2)

    def test_closing_everything_costs_only_the_worker(self) -> None:
        self.assert_dies_and_recovers("import os; os.closerange(0, 1024)", 70)
        self.run_ok("import os; os.closerange(3, 256)")
        self.assertEqual(self.run_ok("1").plain, "1")

    def test_running_out_of_memory_costs_only_the_worker(self) -> None:
        code = (
            "import resource\nresource.setrlimit(resource.RLIMIT_AS, (600_000_000,) * 2)\n"
            "try:\n    hog = [bytearray(10**8) for _ in range(20)]\nexcept MemoryError: print('full')"
        )
        self.assertEqual(self.run_ok(code).text(), "full\n")

    def test_lies_in_the_shared_page_hurt_only_the_worker(self) -> None:
        code = (
            "import gc, mmap\n"
            "for m in [m for m in gc.get_objects() if isinstance(m, memoryview)]: pass\n"
            "import sys\nout = sys.stdout._output\n"
            "for i in range(16): out._words[i] = 2**64 - 1\n"
        )
        self.kernel.begin(code + "import os; os.write(1, b'x' * 100_000); os._exit(9)")
        while True:
            frame = self.kernel.cell.receive()
            if frame["op"] == "died":
                break
        self.kernel.accept_cell()
        self.assertEqual(self.kernel.ask("ping")["op"], "ok")
        self.assertEqual(self.run_ok("1").plain, "1")


if __name__ == "__main__":
    unittest.main()
