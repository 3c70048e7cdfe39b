"""Thread sessions of both modes: bash, expiry, the command policy."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import unittest
import uuid
from pathlib import Path

from cellblock import (
    CommandRefusedError,
    InvalidRequestError,
    LimitError,
    NoSessionError,
    NotFoundError,
    SandboxClient,
    SessionExpiredError,
    validate_command,
)
from cellblock._exchange import post
from support import arguments, both_modes, wait_for

COMMANDS = [
    "ls | sort",
    "echo 'rm -rf /'",
    "rm x",
    "echo $(rm x)",
    "cat a && curl b",
    "find . -exec rm {} ;",
    "python3 -c 'print(1)'",
    "if",
    "$CMD",
    "for f in *; do wc -l $f; done",
    "sudo ls",
    "bash -c ls",
    "x" * 200_000,
]


class ThreadSessions:
    def open(self, client) -> str:
        thread = f"thread-{uuid.uuid4()}"
        session = client.get_or_create_session("ada", thread, 5)
        self.assertEqual((session.status, session["thread_id"]), ("created", thread))
        self.addCleanup(client.close_session)
        return thread

    def expire(self, client) -> str:
        """Takes the session away behind the client's back, as its time-out would."""
        gone = client.session_id
        client._run(self.cleanup(gone))
        return gone

    def cleanup(self, session_id: str):
        return (yield post("/cleanup", {"session_id": session_id})).json()

    def test_a_thread_has_one_session_whoever_asks(self) -> None:
        client, other = self.client(), self.client()
        thread = self.open(client)
        again = other.get_or_create_session("bob", thread)
        self.assertEqual((again.status, again.session_id), ("existing", client.session_id))

    def test_commands_run_and_say_how_they_ended(self) -> None:
        client = self.client()
        self.open(client)
        result = client.execute("echo out; echo err >&2; exit 3")
        self.assertEqual((result.exit_code, result.stdout, result["stderr"]), (3, "out\n", "err\n"))
        self.assertGreaterEqual(result.execution_time_ms, 0)
        self.assertEqual(client.execute("while true; do true; done", timeout=0.3).exit_code, 124)

    def test_without_a_session_there_is_a_clear_error(self) -> None:
        client = self.client()
        for use in (lambda: client.execute("ls"), client.list_files):
            with self.assertRaisesRegex(NoSessionError, "get_or_create_session"):
                use()
        client.close_session()

    def test_an_expired_session_is_opened_again_once(self) -> None:
        client = self.client()
        self.open(client)
        gone = self.expire(client)
        self.assertEqual(client.execute("echo back").stdout, "back\n")
        self.assertNotEqual(client.session_id, gone)
        self.expire(client)
        self.assertEqual(client.list_files().files, [])

    def test_an_expired_session_raises_if_asked_to(self) -> None:
        client = self.client()
        self.open(client)
        gone = self.expire(client)
        with self.assertRaises(SessionExpiredError) as caught:
            client.execute("echo x", auto_retry=False)
        error = caught.exception
        self.assertEqual(
            (error.status, error.code, error.body["session_id"]), (404, "not_found", gone)
        )
        self.assertTrue(error.request_id)

    def test_a_file_for_an_expired_session_arrives_whole(self) -> None:
        client = self.client()
        self.open(client)
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "numbers.txt")
            source.write_bytes(b"0123456789" * 100_000)
            self.expire(client)
            self.assertEqual(client.upload_file(source).size_bytes, 1_000_000)
            self.assertEqual(client.execute("wc -c < numbers.txt").stdout.strip(), "1000000")

    def test_a_file_for_an_expired_session_arrives_whole_from_a_task_too(self) -> None:
        async def work(source: str) -> None:
            async with self.async_client() as client:
                session = await client.get_or_create_session("ada", f"thread-{uuid.uuid4()}")
                await client._run(self.cleanup(session.session_id))
                self.assertEqual((await client.upload_file(source, "f")).size_bytes, 1_000_000)
                counted = await client.execute("wc -c < f")
                self.assertEqual(counted.stdout.strip(), "1000000")

        with tempfile.NamedTemporaryFile() as file:
            file.write(b"0123456789" * 100_000)
            file.flush()
            asyncio.run(work(file.name))

    def test_files_go_in_are_listed_and_come_out(self) -> None:
        client = self.client()
        self.open(client)
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "numbers.txt")
            source.write_text("3\n1\n2\n")
            sent = client.upload_file(source)
            self.assertEqual(
                (sent.filename, sent.path, sent.size_bytes),
                ("numbers.txt", "/workspace/numbers.txt", 6),
            )
            client.upload_file(str(source), 'sub/ü "n".txt')
            client.execute("sort numbers.txt > sorted.txt")
            listed = client.list_files()
            names = {file.name for file in listed.files}
            self.assertEqual(names, {"numbers.txt", "sorted.txt", 'sub/ü "n".txt'})
            self.assertEqual(listed.total_files, 3)
            here = os.getcwd()
            os.chdir(folder)
            try:
                saved = client.download_file("sorted.txt")
            finally:
                os.chdir(here)
            self.assertEqual(saved, os.path.join(os.path.realpath(folder), "sorted.txt"))
            self.assertEqual(Path(saved).read_text(), "1\n2\n3\n")
            self.assertEqual(
                client.download_file("sorted.txt", Path(folder, "b")), os.path.join(folder, "b")
            )
            with self.assertRaises(NotFoundError) as caught:
                client.download_file("none.txt", folder)
            self.assertNotIsInstance(caught.exception, SessionExpiredError)
            with self.assertRaises(InvalidRequestError):
                client.download_file("../../etc/passwd", folder)
            with self.assertRaises(FileNotFoundError):
                client.upload_file(Path(folder, "not here"))

    def test_a_file_that_is_too_large_is_refused_with_the_limit(self) -> None:
        client = self.client()
        self.open(client)
        with tempfile.NamedTemporaryFile() as file:
            file.truncate(101 << 20)
            with self.assertRaises(LimitError) as caught:
                client.upload_file(file.name, "large")
        self.assertEqual(
            (caught.exception.status, caught.exception.body["max_size_mb"]), (413, 100)
        )

    def test_the_verdict_here_is_the_verdict_there(self) -> None:
        client = self.client()
        self.open(client)
        for command in COMMANDS:
            verdict = client.validate_command(command)
            self.assertEqual(verdict, validate_command(command))
            try:
                client.execute(command)
                refused = None
            except CommandRefusedError as error:
                refused = (error.body["error"], error.forbidden_pattern)
            expected = None if verdict else (verdict.reason, verdict.forbidden_pattern)
            self.assertEqual(refused, expected, command[:100])

    def test_a_closed_session_is_gone_with_its_files(self) -> None:
        client = self.client()
        thread = self.open(client)
        client.execute("echo x > f")
        client.close_session()
        self.assertIsNone(client.session_id)
        self.assertEqual(client.get_or_create_session("ada", thread).status, "created")
        self.assertEqual(client.list_files().total_files, 0)

    def test_threads_of_one_client_have_a_session_each(self) -> None:
        client = self.client()
        shared = self.open(client)
        client.execute(f"echo {shared} > name")
        seen = {}
        opened = threading.Barrier(3)

        def own(name: str) -> None:
            client.get_or_create_session("ada", f"{shared}-{name}")
            opened.wait(60)
            client.execute(f"echo {name} > name")
            seen[name] = client.execute("cat name").stdout.strip()
            client.close_session()

        self.in_threads(*(lambda name=name: own(name) for name in ("a", "b", "c")))
        self.assertEqual(seen, {"a": "a", "b": "b", "c": "c"})
        self.assertEqual(client.execute("cat name").stdout.strip(), shared)

    def in_threads(self, *work) -> None:
        threads = [threading.Thread(target=each) for each in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    def test_a_thread_that_opened_none_shares_the_only_one_and_never_one_of_several(self) -> None:
        client = self.client()
        thread = self.open(client)
        first = client.session_id
        client.execute("echo first > name")
        said = []

        def use() -> None:
            try:
                said.append(client.execute("cat name").stdout)
            except NoSessionError as error:
                said.append((error.code, str(error)))
            said.append(client.session_id)

        self.in_threads(use)
        self.assertEqual(said, ["first\n", first])
        client.get_or_create_session("ada", f"{thread}-second")
        self.addCleanup(client.close_session)
        self.in_threads(use)
        (code, text), chosen = said[2:]
        self.assertEqual((code, chosen), ("no_session", None))
        self.assertIn("2 open ones", text)
        self.assertIn("session_id", text)
        self.in_threads(lambda: said.append(client.execute("cat name", session_id=first).stdout))
        self.assertEqual(said[4], "first\n")
        client.close_session(session_id=first)

    def test_every_call_can_name_its_session(self) -> None:
        client, other = self.client(), self.client()
        self.open(client)
        named = {"session_id": client.session_id}
        self.open(other)
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "f")
            source.write_text("x")
            other.upload_file(source, **named)
            self.assertEqual(other.list_files(**named).total_files, 1)
            self.assertEqual(other.list_files().total_files, 0)
            saved = other.download_file("f", Path(folder, "g"), **named)
            self.assertEqual(Path(saved).read_text(), "x")
        self.assertEqual(other.execute("cat f", **named).stdout, "x")
        other.close_session(**named)
        # Another client's session is not this one's to open again.
        with self.assertRaises(SessionExpiredError):
            other.execute("cat f", **named)
        with self.assertRaises(SessionExpiredError):
            other.execute("cat f", session_id="")

    def test_an_id_from_before_a_session_was_opened_again_still_means_it(self) -> None:
        client = self.client()
        self.open(client)
        gone = self.expire(client)
        client.execute("echo new > f", session_id=gone)
        self.assertNotEqual(client.session_id, gone)
        self.assertEqual(client.execute("cat f", session_id=gone).stdout, "new\n")

    def test_a_session_that_is_closed_under_a_command_stays_closed(self) -> None:
        client = self.client()
        thread = self.open(client)
        session_id = client.session_id
        ended = []

        def work() -> None:
            try:
                ended.append(client.execute("echo x > started; while true; do true; done", 60))
            except SessionExpiredError as error:
                ended.append(error)

        running = threading.Thread(target=work)
        running.start()
        wait_for("the command", lambda: client.list_files().total_files)
        client.close_session()
        running.join(60)
        self.assertEqual(len(ended), 1)
        self.assertIsNone(client.session_id)
        self.assertEqual(self.client().get_or_create_session("ada", thread).status, "created")
        with self.assertRaises(SessionExpiredError):
            client.list_files(session_id=session_id)

    def test_leaving_a_with_closes_what_the_client_made_and_nothing_else(self) -> None:
        keeper = self.client()
        found = self.open(keeper)
        made, kept = f"{found}-made", f"{found}-kept"
        with SandboxClient(**arguments(self.mode)) as client:
            client.get_or_create_session("ada", found)
            client.get_or_create_session("ada", made)
        closed = SandboxClient(**arguments(self.mode))
        closed.get_or_create_session("ada", kept)
        closed.close()
        statuses = [
            keeper.get_or_create_session("ada", thread).status for thread in (found, made, kept)
        ]
        self.assertEqual(statuses, ["existing", "created", "existing"])
        for thread in (made, kept):
            keeper.get_or_create_session("ada", thread)
            keeper.close_session()
        keeper.get_or_create_session("ada", found)


both_modes(ThreadSessions)

if __name__ == "__main__":
    unittest.main()
