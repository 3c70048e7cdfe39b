"""Interrupts, restarts, deaths, forks, and a host that goes away.

Every death here is one that user code can bring about; none may cost the supervisor.
"""

from __future__ import annotations

import os
import time
import unittest

from host import Kernel, LinkEnded, readable
from test_cells import KernelTest


class TestInterrupt(KernelTest):
    """SIGINT reaches user code and nothing else."""

    def test_a_busy_loop_is_interrupted_and_variables_are_kept(self) -> None:
        self.run_ok("kept = 5")
        self.kernel.begin("print('go')\nwhile True: pass")
        self.kernel.wait_for_output("go")
        self.assertTrue(self.kernel.interrupt()["running"])
        answer = self.kernel.finish()
        self.assertEqual(
            (answer.status, answer.error["name"]), ("interrupted", "KeyboardInterrupt")
        )
        self.assertIn("<cell 2>", answer.error["traceback"])
        self.assertEqual(self.run_ok("kept").plain, "5")

    def test_sleeps_and_children_are_interrupted(self) -> None:
        for code in (
            "import time; time.sleep(60)",
            "import subprocess; subprocess.run(['sleep', '60'])",
        ):
            self.kernel.begin("print('go')\n" + code)
            self.kernel.wait_for_output("go")
            self.kernel.interrupt()
            self.assertEqual(self.kernel.finish().status, "interrupted")

    def test_an_idle_worker_is_not_interrupted(self) -> None:
        self.assertFalse(self.kernel.ask("interrupt", execution=self.kernel.execution)["running"])
        self.assertFalse(self.kernel.ask("interrupt", execution=0)["running"])
        self.assertEqual(self.run_ok("1").plain, "1")

    def test_an_interrupt_for_another_execution_is_ignored(self) -> None:
        gate = os.path.join(self.kernel.workspace, "gate")
        self.kernel.begin(
            f"import os, time\nprint('go')\nwhile not os.path.exists({gate!r}): time.sleep(0.01)"
        )
        self.kernel.wait_for_output("go")
        self.assertFalse(
            self.kernel.ask("interrupt", execution=self.kernel.execution + 1)["running"]
        )
        open(gate, "w").close()
        self.assertEqual(self.kernel.finish().status, "ok")

    def test_printing_loops_can_be_interrupted_again_and_again(self) -> None:
        for _ in range(30):
            self.kernel.begin("while True: print('x' * 100)", limit=10**9)
            self.kernel.wait_for_output("x")
            self.kernel.interrupt()
            self.assertEqual(self.kernel.finish().status, "interrupted")

    def test_interrupts_at_the_edges_of_short_cells_do_no_harm(self) -> None:
        self.run_ok("kept = 6")
        for _ in range(300):
            self.kernel.begin("x = 1; x")
            self.kernel.ask("interrupt", execution=self.kernel.execution)
            self.kernel.ask("interrupt", execution=self.kernel.execution)
            self.assertIn(self.kernel.finish().status, ("ok", "interrupted"))
        self.assertEqual(self.run_ok("kept").plain, "6")

    def test_code_that_swallows_one_interrupt_gets_the_next(self) -> None:
        self.kernel.begin(
            "try:\n    print('go')\n    while True: pass\nexcept BaseException: print('caught')\nwhile True: pass"
        )
        self.kernel.wait_for_output("go")
        self.kernel.interrupt()
        self.kernel.wait_for_output("caught")
        self.kernel.interrupt()
        self.assertEqual(self.kernel.finish().status, "interrupted")

    def test_an_endless_repr_or_str_is_interrupted(self) -> None:
        for code in (
            "class R:\n    def __repr__(self):\n        print('go')\n        while True: pass\nR()",
            "class E(Exception):\n    def __str__(self):\n        print('go')\n        while True: pass\nraise E",
        ):
            self.kernel.begin(code)
            self.kernel.wait_for_output("go")
            self.kernel.interrupt()
            self.assertIn(self.kernel.finish().status, ("interrupted", "error"))


class TestDeath(KernelTest):
    """The worker dies, the sandbox does not."""

    def assert_died(self, code: str, reason: str, number: int, output: str = "before\n") -> None:
        answer = self.kernel.run(code)
        end = {key: answer.end[key] for key in ("op", "reason", "code")}
        self.assertEqual(end, {"op": "died", "reason": reason, "code": number})
        self.assertEqual(answer.text(), output)
        with self.assertRaises(LinkEnded):
            self.kernel.cell.receive()
        self.kernel.accept_cell()
        self.assertEqual(self.kernel.hellos[-1]["execution_count"], 0)
        self.assertEqual(self.run_ok("'alive'").plain, "'alive'")

    def test_exit_keeps_what_was_printed(self) -> None:
        self.assert_died("print('before'); import os; os._exit(3)", "exit", 3)

    def test_partial_lines_and_long_loops_before_a_death_are_kept(self) -> None:
        code = "for i in range(3000): print(i)\nprint('end', end='')\nimport os; os._exit(1)"
        self.assert_died(code, "exit", 1, "".join(f"{i}\n" for i in range(3000)) + "end")

    def test_descriptor_output_before_a_death_is_kept(self) -> None:
        self.assert_died("import os; os.write(1, b'before\\n'); os._exit(4)", "exit", 4)

    def test_a_segfault_is_reported(self) -> None:
        self.assert_died("print('before'); import ctypes; ctypes.string_at(0)", "signal", 11)

    def test_sigkill_is_reported(self) -> None:
        self.assert_died("print('before'); import os; os.kill(os.getpid(), 9)", "signal", 9)

    def test_closing_every_descriptor_costs_only_the_worker(self) -> None:
        self.assert_died("import os; os.closerange(0, 4096)", "exit", 70, "")

    def test_children_of_a_dead_worker_are_gone(self) -> None:
        pid_file = os.path.join(self.kernel.workspace, "pid")
        code = (
            "import os, subprocess\nprint('before')\n"
            f"p = subprocess.Popen(['setsid', 'sleep', '300']); open({pid_file!r}, 'w').write(str(p.pid))\n"
            "import time\nos._exit(0)"
        )
        self.assert_died(code, "exit", 0)
        with open(pid_file) as file:
            self.assertFalse(os.path.exists(f"/proc/{file.read()}"))

    def test_a_death_between_cells_has_id_zero(self) -> None:
        self.run_ok("import os, threading; threading.Timer(0.05, os._exit, (5,)).start()")
        frame = self.kernel.cell.receive()
        self.assertEqual(frame, {"op": "died", "id": 0, "reason": "exit", "code": 5})
        self.kernel.accept_cell()


class TestRestart(KernelTest):
    """The host asks for a fresh worker."""

    def test_restart_gives_a_new_generation_with_no_variables(self) -> None:
        self.run_ok("gone = 1")
        before = self.kernel.hellos[-1]["generation"]
        answer = self.kernel.ask("restart")
        self.assertEqual(answer["generation"], before + 1)
        self.assertEqual(self.kernel.cell.receive()["op"], "died")
        self.kernel.accept_cell()
        self.assertEqual(self.kernel.hellos[-1]["generation"], before + 1)
        self.assertEqual(self.kernel.run("gone").error["name"], "NameError")

    def test_restart_during_a_cell_ends_it_and_its_children(self) -> None:
        self.kernel.begin(
            "import subprocess, time, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "p = subprocess.Popen(['setsid', 'sh', '-c', 'sleep 300 & sleep 300'])\nprint(p.pid)\ntime.sleep(60)"
        )
        pid = self.kernel.wait_for_output("\n")[-1]["text"].strip()
        self.kernel.ask("restart")
        answer = self.kernel.finish()
        self.assertEqual((answer.end["op"], answer.end["code"]), ("died", 9))
        self.assertFalse(os.path.exists(f"/proc/{pid}"))
        self.kernel.accept_cell()
        self.assertEqual(self.run_ok("1").plain, "1")

    def test_ping_is_answered_while_a_cell_runs(self) -> None:
        self.kernel.begin("print('go')\nwhile True: pass")
        self.kernel.wait_for_output("go")
        self.assertEqual(self.kernel.ask("ping")["op"], "ok")
        self.kernel.interrupt()
        self.kernel.finish()

    def test_unknown_words_are_ignored(self) -> None:
        self.kernel.control.send({"op": "dance", "id": 99})
        self.kernel.cell.send({"op": "dance"})
        self.assertEqual(self.kernel.ask("ping")["op"], "ok")
        self.assertEqual(self.run_ok("1").plain, "1")


class TestForks(KernelTest):
    """Children that are copies of the worker."""

    def test_a_forked_child_that_falls_off_the_cell_ends_quietly(self) -> None:
        code = "import os\npid = os.fork()\nprint('child' if pid == 0 else 'parent')\nif pid: print(os.waitpid(pid, 0)[1])"
        answer = self.run_ok(code)
        self.assertEqual(sorted(answer.text().split()), ["0", "child", "parent"])
        self.assertEqual(self.run_ok("1").plain, "1")

    def test_a_forked_child_that_raises_shows_its_traceback_and_exits_1(self) -> None:
        code = "import os\npid = os.fork()\nif pid == 0: raise KeyError('in child')\nos.waitpid(pid, 0)[1] >> 8"
        answer = self.run_ok(code)
        self.assertEqual(answer.plain, "1")
        self.assertIn("KeyError: 'in child'", answer.text("stderr"))

    def test_a_forked_child_exits_with_its_code(self) -> None:
        code = (
            "import os, sys\npid = os.fork()\nif pid == 0: sys.exit(7)\nos.waitpid(pid, 0)[1] >> 8"
        )
        self.assertEqual(self.run_ok(code).plain, "7")

    def test_forked_children_do_not_repeat_waiting_text(self) -> None:
        code = "import os\nprint('once', end='')\npid = os.fork()\nif pid: os.waitpid(pid, 0);"
        self.assertEqual(self.run_ok(code).text(), "once")

    def test_multiprocessing_works_with_fork(self) -> None:
        code = (
            "import multiprocessing as mp\ndef square(n):\n    print('sq', n); return n * n\n"
            "with mp.get_context('fork').Pool(2) as pool: out = pool.map(square, range(4))\nout"
        )
        answer = self.run_ok(code)
        self.assertEqual(answer.plain, "[0, 1, 4, 9]")
        self.assertEqual(sorted(answer.text().splitlines()), [f"sq {n}" for n in range(4)])

    def test_multiprocessing_works_with_spawn(self) -> None:
        code = (
            "import math, multiprocessing as mp\n"
            "with mp.get_context('spawn').Pool(1) as pool: out = pool.map(math.sqrt, [4, 9])\nout"
        )
        self.assertEqual(self.run_ok(code).plain, "[2.0, 3.0]")

    def test_forking_warns_of_no_threads(self) -> None:
        code = "import warnings, os\nwarnings.simplefilter('error')\npid = os.fork()\nif pid: os.waitpid(pid, 0);"
        self.assertEqual(self.run_ok(code).text(), "")


class TestHostRestart(unittest.TestCase):
    """The service is killed and started again."""

    def setUp(self) -> None:
        self.kernel = Kernel()
        self.addCleanup(self.kernel.close)

    def test_variables_survive(self) -> None:
        self.kernel.run("kept = 'yes'")
        for _ in range(3):
            self.kernel.vanish()
            self.kernel.listen()
            self.kernel.accept_both()
            self.assertEqual(self.kernel.hellos[-1]["generation"], 1)
            self.assertEqual(self.kernel.run("kept").plain, "'yes'")

    def test_the_kernel_waits_for_a_host_that_is_long_gone(self) -> None:
        self.kernel.run("kept = 1")
        self.kernel.vanish()
        deadline = time.monotonic() + 0.7
        while time.monotonic() < deadline:
            self.assertIsNone(self.kernel.process.poll())
            readable(
                self.kernel.listener, 0.05
            ) if self.kernel.listener.fileno() >= 0 else time.sleep(0.05)
        self.kernel.listen()
        self.kernel.accept_both()
        self.assertEqual(self.kernel.run("kept").plain, "1")

    def test_a_running_cell_runs_on_and_keeps_its_variables(self) -> None:
        gate = os.path.join(self.kernel.workspace, "gate")
        self.kernel.begin(
            "import os, time, subprocess\nstep = 0\nprint('go')\n"
            f"while not os.path.exists({gate!r}):\n    print('lost'); subprocess.run(['echo', 'lost']); time.sleep(0.01)\n"
            "step = 1"
        )
        self.kernel.wait_for_output("go")
        self.kernel.vanish()
        self.kernel.listen()
        self.kernel.control = self.kernel.accept()
        self.assertEqual(self.kernel.control.receive()["role"], "control")
        self.kernel.accept_cell(wait_for_hello=False)
        self.assertFalse(readable(self.kernel.cell.sock, 0.1))
        open(gate, "w").close()
        hello = self.kernel.cell.receive()
        self.assertEqual(
            (hello["op"], hello["generation"], hello["execution_count"]), ("hello", 1, 1)
        )
        self.assertEqual(self.kernel.run("step").plain, "1")

    def test_a_host_that_ends_only_the_cell_link_gets_a_new_one(self) -> None:
        self.kernel.run("kept = 2")
        for _ in range(5):
            self.kernel.cell.close()
            self.kernel.accept_cell()
            self.assertEqual(self.kernel.run("kept").plain, "2")

    def test_a_restart_before_the_worker_took_its_new_link_works(self) -> None:
        self.kernel.begin("print('go')\nwhile True: pass")
        self.kernel.wait_for_output("go")
        self.kernel.vanish()
        self.kernel.listen()
        self.kernel.control = self.kernel.accept()
        self.kernel.control.receive()
        self.kernel.accept_cell(wait_for_hello=False)
        self.assertEqual(self.kernel.ask("restart")["generation"], 2)
        self.assertEqual(self.kernel.cell.receive()["generation"], 2)
        self.assertEqual(self.kernel.run("1").plain, "1")

    def test_a_new_link_is_taken_with_every_descriptor_in_use(self) -> None:
        self.kernel.run(
            "import os, resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))\nfds = []\n"
            "try:\n    while True: fds.append(os.open('/dev/null', 0))\nexcept OSError: pass"
        )
        self.kernel.vanish()
        self.kernel.listen()
        self.kernel.accept_both()
        self.assertEqual(self.kernel.run("len(fds) > 900").plain, "True")


class TestPreload(KernelTest):
    """Packages loaded before the fork."""

    env = {"CELLBLOCK_PRELOAD": "colorsys, no_such_module,"}

    def test_preloaded_modules_are_there_and_failures_are_told(self) -> None:
        self.assertEqual(self.run_ok("import sys; 'colorsys' in sys.modules").plain, "True")
        (failure,) = self.kernel.hellos[0]["preload_failed"]
        self.assertTrue(failure.startswith("no_such_module: ModuleNotFoundError"))


if __name__ == "__main__":
    unittest.main()
