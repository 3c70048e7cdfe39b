"""Processes that the host asks for, beside the worker."""

from __future__ import annotations

import os
import unittest

import host


class TestCommands(unittest.TestCase):
    """One kernel, many processes."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.kernel = host.Kernel()
        cls.number = 1000

    @classmethod
    def tearDownClass(cls) -> None:
        cls.kernel.close()

    def start(self, *argv: str, **fields: object) -> tuple[int, host.HostLink]:
        TestCommands.number += 1
        number = self.number
        answer = self.kernel.ask("spawn", process=number, argv=list(argv), **fields)
        self.assertEqual(answer["error"], "")
        link = self.kernel.accept()
        self.assertEqual(link.receive(), {"op": "hello", "role": "process", "process": number})
        return number, link

    def finish(self, link: host.HostLink) -> host.Answer:
        frames = [link.receive()]
        while frames[-1]["op"] != "died":
            frames.append(link.receive())
        link.close()
        return host.Answer(frames)

    def shell(self, line: str, **fields: object) -> host.Answer:
        return self.finish(self.start("sh", "-c", line, **fields)[1])

    def test_output_comes_by_stream_and_the_end_with_its_code(self) -> None:
        answer = self.shell("echo out; echo err >&2; exit 3")
        self.assertEqual((answer.text("stdout"), answer.text("stderr")), ("out\n", "err\n"))
        self.assertEqual((answer.end["reason"], answer.end["code"]), ("exit", 3))

    def test_folder_and_variables_are_as_asked_and_stdin_is_closed(self) -> None:
        os.makedirs(os.path.join(self.kernel.workspace, "sub"), exist_ok=True)
        answer = self.shell(
            "basename $PWD; echo $WORD; cat; echo end", cwd="sub", env={"WORD": "x"}
        )
        self.assertEqual(answer.text(), "sub\nx\nend\n")

    def test_a_program_that_is_not_there_is_said_so(self) -> None:
        for argv, fields in ((["no-such-program"], {}), (["true"], {"cwd": "nowhere"}), ([1], {})):
            with self.subTest(argv=argv, fields=fields):
                answer = self.kernel.ask("spawn", process=1, argv=argv, **fields)
                self.assertIn("Error", answer["error"])
                with self.assertRaises(host.LinkEnded):
                    self.kernel.accept().receive()

    def test_a_kill_takes_what_hid_in_a_session_of_its_own(self) -> None:
        pids = os.path.join(self.kernel.workspace, "pids")
        number, link = self.start(
            "sh", "-c", f"setsid sleep 300 & echo $! > {pids}; echo ready; sleep 300"
        )
        self.assertEqual(link.receive()["text"], "ready\n")
        self.kernel.ask("kill", process=number)
        answer = self.finish(link)
        self.assertEqual((answer.end["reason"], answer.end["code"]), ("signal", 9))
        with open(pids) as file:
            hidden = int(file.read())
        self.assertFalse(os.path.exists(f"/proc/{hidden}"))

    def test_a_host_that_does_not_read_stops_the_process_not_the_kernel(self) -> None:
        _number, link = self.start("sh", "-c", "yes | head -c 50000000")
        self.assertTrue(host.readable(link.sock, host.PATIENCE_SECS))
        self.assertEqual(self.kernel.ask("ping")["op"], "ok")
        answer = self.finish(link)
        self.assertEqual((len(answer.text()), answer.end["code"]), (50_000_000, 0))

    def test_a_host_that_hangs_up_ends_the_process(self) -> None:
        mark = os.path.join(self.kernel.workspace, "alive")
        _number, link = self.start("sh", "-c", f"echo $$ > {mark}; echo ready; sleep 300")
        link.receive()
        with open(mark) as file:
            pid = int(file.read())
        link.close()
        while os.path.exists(f"/proc/{pid}"):
            self.assertEqual(self.kernel.ask("ping")["op"], "ok")

    def test_a_half_character_waits_for_its_other_half(self) -> None:
        answer = self.shell(r"printf '\303'; sleep 0.05; printf '\244'; printf '\377'")
        self.assertEqual(answer.text(), "ä\ufffd")


if __name__ == "__main__":
    unittest.main()
