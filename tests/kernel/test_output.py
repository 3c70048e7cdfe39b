"""Captured output: order, streaming, limits, odd bytes, late text, broken streams.

Never sleeps to get an order right: the kernel promises it.
"""

from __future__ import annotations

import os
import time
import unittest

from host import readable
from test_cells import KernelTest


class TestOrder(KernelTest):
    """One order for print, os.write and children."""

    def test_print_write_and_children_stay_in_order(self) -> None:
        code = (
            "import os, subprocess, sys\n"
            "for i in range(20):\n    print('p', i)\n    os.write(1, b'w %d\\n' % i)\n"
            "    print('e', i, file=sys.stderr)\n    os.write(2, b'f %d\\n' % i)\n"
        )
        expected = "".join(f"p {i}\nw {i}\ne {i}\nf {i}\n" for i in range(20))
        self.assertEqual(self.run_ok(code).text(), expected)

    def test_order_holds_in_long_loops(self) -> None:
        code = "import os\nfor i in range(500):\n    print('p', i)\n    os.write(1, b'w %d\\n' % i)"
        expected = "".join(f"p {i}\nw {i}\n" for i in range(500))
        self.assertEqual(self.run_ok(code).text(), expected)

    def test_subprocesses_stay_in_order(self) -> None:
        code = (
            "import subprocess, os\n"
            "for i in range(5):\n    print('a', i)\n    subprocess.run(['echo', 'b', str(i)])\n"
            "    os.system(f'echo c {i} >&2')"
        )
        expected = "".join(f"a {i}\nb {i}\nc {i}\n" for i in range(5))
        self.assertEqual(self.run_ok(code).text(), expected)

    def test_streams_are_told_apart(self) -> None:
        answer = self.run_ok("import sys; print('o'); print('e', file=sys.stderr)")
        self.assertEqual((answer.text("stdout"), answer.text("stderr")), ("o\n", "e\n"))

    def test_bytes_and_text_share_one_order(self) -> None:
        answer = self.run_ok("import sys; print('1'); sys.stdout.buffer.write(b'2\\n'); print('3')")
        self.assertEqual(answer.text(), "1\n2\n3\n")

    def test_child_output_is_complete_when_done_arrives(self) -> None:
        answer = self.run_ok(
            "import subprocess; subprocess.run(['seq', '1', '20000']);", limit=10**7
        )
        self.assertEqual(answer.text(), "".join(f"{i}\n" for i in range(1, 20001)))

    def test_a_host_that_reads_late_loses_no_child_output(self) -> None:
        over = os.path.join(self.kernel.workspace, "written")
        code = f"import subprocess; subprocess.run('seq 1 200000; touch {over}', shell=True);"
        self.kernel.begin(code, limit=10**7)
        # Far more than the link and the pipe hold: the supervisor has to stop and go on.
        self.assertTrue(readable(self.kernel.cell.sock, 10))
        for _ in range(3):
            self.assertEqual(self.kernel.ask("ping")["op"], "ok")
        self.assertFalse(os.path.exists(over))
        answer = self.kernel.finish()
        self.assertEqual(answer.text(), "".join(f"{i}\n" for i in range(1, 200001)))
        self.assertFalse(answer.end["truncated"])

    def test_the_host_may_vanish_while_output_waits_for_it(self) -> None:
        self.kernel.begin(
            "import subprocess; kept = 1; subprocess.run(['seq', '1', '200000']);", limit=10**7
        )
        self.assertTrue(readable(self.kernel.cell.sock, 10))
        self.kernel.vanish()
        self.kernel.listen()
        self.kernel.accept_both()
        self.assertEqual(self.run_ok("kept").plain, "1")

    def test_threads_print_whole_lines(self) -> None:
        code = (
            "import threading\n"
            "def work(n):\n    for i in range(200): print(f'{n}-{i}\\n', end='')\n"
            "ts = [threading.Thread(target=work, args=(n,)) for n in range(4)]\n"
            "[t.start() for t in ts]; [t.join() for t in ts];"
        )
        lines = self.run_ok(code).text().splitlines()
        self.assertEqual(sorted(lines), sorted(f"{n}-{i}" for n in range(4) for i in range(200)))


class TestStreaming(KernelTest):
    """Output before the end, and after it."""

    def test_output_arrives_before_the_cell_ends(self) -> None:
        gate = os.path.join(self.kernel.workspace, "gate")
        self.kernel.begin(
            f"import os, time\nprint('early')\nwhile not os.path.exists({gate!r}): time.sleep(0.01)"
        )
        self.assertEqual(self.kernel.cell.receive()["text"], "early\n")
        open(gate, "w").close()
        self.assertEqual(self.kernel.finish().status, "ok")

    def test_partial_lines_arrive_on_flush(self) -> None:
        gate = os.path.join(self.kernel.workspace, "gate2")
        self.kernel.begin(
            f"import os, time\nprint('50%', end='', flush=True)\nwhile not os.path.exists({gate!r}): time.sleep(0.01)"
        )
        self.assertEqual(self.kernel.cell.receive()["text"], "50%")
        open(gate, "w").close()
        self.kernel.finish()

    def test_a_background_child_that_keeps_stdout_open_holds_nothing_back(self) -> None:
        started = time.monotonic()
        self.run_ok("import subprocess; child = subprocess.Popen(['sleep', '60'])")
        self.assertLess(time.monotonic() - started, 5)
        self.run_ok("child.kill(); child.wait();")

    def test_a_background_flood_holds_nothing_back(self) -> None:
        self.run_ok("import subprocess; flood = subprocess.Popen(['yes'])")
        started = time.monotonic()
        for _ in range(5):
            self.run_ok("print('me')", limit=1000)
        self.assertLess(time.monotonic() - started, 5)
        self.run_ok("flood.kill(); flood.wait();")
        self.run_ok("1")

    def test_late_output_of_a_child_comes_first_in_the_next_cell(self) -> None:
        fifo = os.path.join(self.kernel.workspace, "fifo")
        os.mkfifo(fifo)
        os.chmod(fifo, 0o666)
        code = f"import subprocess; late = subprocess.Popen(['sh', '-c', 'read x < {fifo}; echo late; echo x > {fifo}'])"
        self.run_ok(code)
        with open(fifo, "w") as file:
            file.write("go\n")
        with open(fifo) as file:
            file.read()
        self.assertFalse(readable(self.kernel.cell.sock, 0.02))
        self.assertEqual(self.run_ok("print('now')").text(), "late\nnow\n")
        self.run_ok("late.wait();")

    def test_late_output_keeps_the_newest_64_kib(self) -> None:
        code = "import subprocess; late = subprocess.Popen(['sh', '-c', 'sleep 0.1; seq 1 50000; touch over'])"
        self.run_ok(code)
        over = os.path.join(self.kernel.workspace, "over")
        deadline = time.monotonic() + 10
        while not os.path.exists(over) and time.monotonic() < deadline:
            readable(self.kernel.cell.sock, 0.01)
        text = self.run_ok("late.wait();").text()
        self.assertTrue(text.endswith("\n50000\n"))
        self.assertLessEqual(len(text), 65_536)
        self.assertGreater(len(text), 40_000)

    def test_threads_that_print_between_cells_are_heard_in_the_next(self) -> None:
        code = (
            "import threading\ngo = threading.Event(); said = threading.Event()\n"
            "def speak():\n    go.wait(); print('from a thread'); said.set()\n"
            "class Late:\n    def __repr__(self): return 'x'\n"
            "threading.Thread(target=speak).start()\nthreading.Timer(0.05, go.set).start()"
        )
        self.run_ok(code)
        self.assertFalse(readable(self.kernel.cell.sock, 0.3))
        self.assertEqual(self.run_ok("said.wait(5); print('cell')").text(), "from a thread\ncell\n")


class TestLimits(KernelTest):
    """max_output_bytes."""

    def test_python_output_is_cut_at_the_limit(self) -> None:
        answer = self.run_ok("for i in range(100000): print('0123456789')", limit=5_000)
        self.assertEqual((len(answer.text()), answer.end["truncated"]), (5_000, True))

    def test_child_output_is_cut_at_the_limit_and_never_blocks(self) -> None:
        answer = self.run_ok(
            "import subprocess; subprocess.run('yes | head -c 5000000', shell=True);", limit=5_000
        )
        self.assertEqual((len(answer.text()), answer.end["truncated"]), (5_000, True))

    def test_short_output_is_not_marked(self) -> None:
        self.assertFalse(self.run_ok("print('x')", limit=100).end["truncated"])

    def test_one_giant_write_is_cut(self) -> None:
        answer = self.run_ok("print('é' * 1_000_000)", limit=100_001)
        self.assertEqual(len(answer.text().encode()), 100_000)

    def test_a_limit_of_zero_sends_nothing(self) -> None:
        answer = self.run_ok("print('x'); 5", limit=0)
        self.assertEqual((answer.text(), answer.plain, answer.end["truncated"]), ("", "", True))

    def test_the_next_cell_starts_anew(self) -> None:
        self.run_ok("print('x' * 10_000)", limit=10)
        self.assertEqual(self.run_ok("print('y')", limit=10).text(), "y\n")


class TestOddText(KernelTest):
    """Bytes that are no text, and text that is no UTF-8."""

    def test_bytes_that_are_not_utf8_are_replaced(self) -> None:
        text = self.run_ok("import os; os.write(1, b'a\\xff\\xfeb\\n');").text()
        self.assertEqual(text, "a\ufffd\ufffdb\n")

    def test_a_character_split_over_two_writes_is_whole(self) -> None:
        code = "import os, time\nos.write(1, b'\\xc3')\ntime.sleep(0.02)\nos.write(1, b'\\xa9\\n');"
        self.assertEqual(self.run_ok(code).text(), "é\n")

    def test_lone_surrogates_do_not_break_anything(self) -> None:
        answer = self.run_ok("print('a\\ud800b'); '\\udcff'")
        self.assertEqual(answer.text(), "a?b\n")
        self.assertEqual(self.kernel.run("raise ValueError('\\ud800')").error["value"], "?")

    def test_text_that_json_escapes_survives(self) -> None:
        text = '\\x00\\x1b[31m\\"\\\\\\u2028é😀'
        answer = self.run_ok(f'print("{text}" * 3000)', limit=10**6)
        self.assertEqual(answer.text(), '\x00\x1b[31m"\\\u2028é😀' * 3000 + "\n")


class TestBrokenStreams(KernelTest):
    """Whatever a cell does to its streams, the next one is whole."""

    def test_stdout_none_is_survived(self) -> None:
        self.run_ok("import sys; sys.stdout = None; sys.stderr = 5; print('x')")
        self.assertEqual(self.run_ok("print('back')").text(), "back\n")

    def test_closed_stdout_is_survived(self) -> None:
        self.run_ok("import sys; sys.stdout.close(); sys.stdin.close(); sys.stderr.close()")
        self.assertEqual(self.run_ok("print('back')").text(), "back\n")

    def test_redirect_stdout_works(self) -> None:
        code = "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as f: print('in')\nf.getvalue()"
        self.assertEqual(self.run_ok(code).plain, "'in\\n'")

    def test_closed_descriptors_come_back(self) -> None:
        self.run_ok("import os; os.closerange(0, 256)")
        self.assertEqual(
            self.run_ok("os.system('echo out; echo err >&2'); print('p')").text(), "out\nerr\np\n"
        )

    def test_the_kernels_own_descriptors_come_back_from_their_spares(self) -> None:
        self.run_ok("kept = 1; import os; os.closerange(700, 1024)")
        self.assertEqual(self.run_ok("print('x'); os.system('echo y'); kept").text(), "x\ny\n")
        self.run_ok("os.closerange(3, 700)")
        self.assertEqual(self.run_ok("kept").plain, "1")

    def test_replaced_descriptors_come_back(self) -> None:
        self.run_ok(
            "import os; fd = os.open('f', os.O_RDWR | os.O_CREAT); os.dup2(fd, 1); os.dup2(fd, 0)"
        )
        self.assertEqual(self.run_ok("os.write(1, b'x\\n'); os.read(0, 5)").text(), "x\n")

    def test_running_out_of_descriptors_is_survived(self) -> None:
        code = (
            "import os, resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))\nfds = []\n"
            "try:\n    while True: fds.append(os.open('/dev/null', 0))\nexcept OSError as e: print(e.errno)"
        )
        self.assertEqual(self.run_ok(code).text(), "24\n")
        self.assertEqual(self.kernel.run("1/0").error["name"], "ZeroDivisionError")
        self.assertEqual(self.run_ok("for fd in fds: os.close(fd)\nprint('free')").text(), "free\n")

    def test_default_sigpipe_and_ignored_sigint_are_survived(self) -> None:
        self.run_ok("import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL)")
        self.run_ok("signal.signal(signal.SIGINT, signal.SIG_IGN);")
        self.kernel.begin("print('go')\nwhile True: pass")
        self.kernel.wait_for_output("go")
        self.kernel.interrupt()
        self.assertEqual(self.kernel.finish().status, "interrupted")

    def test_stream_objects_look_like_files(self) -> None:
        code = (
            "import sys, io\ns = sys.stdout\n"
            "(s.fileno(), s.isatty(), s.encoding, s.writable(), isinstance(s, io.TextIOBase), s.write('ab'))"
        )
        self.assertEqual(self.run_ok(code).plain, "(1, False, 'utf-8', True, True, 2)")


if __name__ == "__main__":
    unittest.main()
