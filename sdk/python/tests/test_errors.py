"""Errors and retries against a server that misbehaves on cue, and keys against the real one."""

from __future__ import annotations

import asyncio
import http.server
import json
import socket
import threading
import time
import unittest
from email.utils import formatdate
from typing import Any
from unittest import mock

from cellblock import (
    AsyncSandboxClient,
    AuthenticationError,
    BusyError,
    ConnectionFailedError,
    InvalidRequestError,
    RequestTimeoutError,
    SandboxClient,
    ServiceError,
    UnavailableError,
)
from support import Service, service

GOOD = {
    "output": "ok\n",
    "stdout": "",
    "stderr": "",
    "results": [],
    "artifacts": [],
    "status": "ok",
    "state": "kept",
    "error": None,
}
DONE = b"event: done\ndata: " + json.dumps(GOOD).encode() + b"\n\n"


class Scripted:
    """Gives its answers one after the other and counts the requests."""

    def __init__(self, case: unittest.TestCase, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[str, float]] = []
        self.request_ids: list[str] = []
        self.names_requests = True
        script = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.do_POST()

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                script.requests.append((self.path, time.monotonic()))
                script.request_ids.append(self.headers["x-request-id"])
                answer = script.answers.pop(0) if script.answers else (200, {}, DONE)
                if answer == "hang up":
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return
                if answer == "silence":
                    script.silence.wait(30)
                    self.close_connection = True
                    return
                status, headers, body = answer
                encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                own = {"x-request-id": "r-1"} if script.names_requests else {}
                for name, value in {"content-length": len(encoded), **own, **headers}.items():
                    self.send_header(name, str(value))
                self.end_headers()
                self.wfile.write(encoded)

            def log_message(self, *_: object) -> None:
                pass

        self.silence = threading.Event()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        case.addCleanup(self.server.server_close)
        case.addCleanup(self.server.shutdown)
        case.addCleanup(self.silence.set)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


class Retries:
    """Run by each client; `run` sends one cell to a scripted server."""

    def test_a_busy_service_is_asked_again_after_the_time_it_names(self) -> None:
        script = Scripted(self, (429, {"retry-after": "1"}, {}), (503, {"retry-after": "0"}, {}))
        self.assertEqual(self.run_code(script.url).output, "ok\n")
        times = [moment for _, moment in script.requests]
        self.assertEqual(len(times), 3)
        self.assertGreaterEqual(times[1] - times[0], 1.0)
        self.assertLess(times[2] - times[1], 0.9)

    def test_retries_end_and_the_last_answer_is_raised(self) -> None:
        problem = {"detail": "full", "code": "capacity", "status": 429}
        script = Scripted(self, *[(429, {"retry-after": "0"}, problem)] * 9)
        with self.assertRaises(BusyError) as caught:
            self.run_code(script.url, max_retries=2)
        error = caught.exception
        self.assertEqual(len(script.requests), 3)
        self.assertEqual((error.status, error.code, error.request_id), (429, "capacity", "r-1"))
        self.assertEqual(error.retry_after, 0.0)
        self.assertIn("full (429, capacity, request r-1)", str(error))

    def test_a_longer_wait_than_anybody_has_patience_for_is_not_waited(self) -> None:
        script = Scripted(self, (503, {"retry-after": "3600"}, {}))
        with self.assertRaises(UnavailableError):
            self.run_code(script.url)
        self.assertEqual(len(script.requests), 1)

    def test_what_may_have_happened_is_never_tried_again(self) -> None:
        for answer, kind in (
            ((500, {}, {"detail": "oops"}), ServiceError),
            ((502, {}, b"<html>"), UnavailableError),
            ((400, {}, {"detail": "no"}), InvalidRequestError),
            ("hang up", ConnectionFailedError),
        ):
            script = Scripted(self, answer)
            with self.assertRaises(kind):
                self.run_code(script.url)
            self.assertEqual(len(script.requests), 1, answer)

    def test_a_service_that_does_not_listen_yet_is_waited_for(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        delays: list[float] = []
        script = Scripted(self)

        def forget_refusal(delay: float) -> None:
            delays.append(delay)

        with self.assertRaises(ConnectionFailedError) as caught:
            self.run_code(f"http://127.0.0.1:{port}", slept=forget_refusal)
        self.assertEqual(len(delays), 3)
        self.assertLess(delays[0], delays[2])
        self.assertEqual((caught.exception.status, caught.exception.code), (None, "unavailable"))
        self.assertEqual(script.requests, [])

    def test_silence_ends_at_the_clients_time_limit(self) -> None:
        script = Scripted(self, "silence")
        with self.assertRaises(RequestTimeoutError) as caught:
            with mock.patch("cellblock._operations.SILENCE_SECONDS", 0.1):
                self.run_code(script.url, timeout=0.2, work=None)
        self.assertIsInstance(caught.exception, TimeoutError)
        self.assertEqual(len(script.requests), 1)
        self.assertEqual(caught.exception.request_id, script.request_ids[0])

    def test_a_stream_that_ends_early_is_no_result(self) -> None:
        events = b'event: stdout\ndata: {"text":"a"}\n\n'
        script = Scripted(self, (200, {"content-type": "text/event-stream"}, events))
        seen: list[str] = []
        with self.assertRaisesRegex(ConnectionFailedError, "before the cell did"):
            self.run_code(script.url, on_stdout=seen.append)
        self.assertEqual(seen, ["a"])

    def test_a_stream_that_ends_with_a_problem_raises_it(self) -> None:
        problem = b'{"status":503,"code":"unavailable","detail":"gone"}'
        events = b"event: error\ndata: " + problem + b"\n\n"
        script = Scripted(self, (200, {"content-type": "text/event-stream"}, events))
        with self.assertRaisesRegex(UnavailableError, "gone"):
            self.run_code(script.url, on_stdout=print)

    def test_a_callback_that_was_refused_a_connection_of_its_own_does_not_run_the_cell_again(
        self,
    ) -> None:
        def call_home(text: str) -> None:
            raise mine

        mine = ConnectionRefusedError("mine")
        events = b'event: stdout\ndata: {"text":"a"}\n\n' + DONE
        script = Scripted(self, *[(200, {}, events)] * 4)
        with self.assertRaises(ConnectionRefusedError) as caught:
            self.run_code(script.url, on_stdout=call_home)
        self.assertIs(caught.exception, mine)
        self.assertEqual(len(script.requests), 1)

    def test_every_error_has_the_id_that_was_sent(self) -> None:
        stream = {"content-type": "text/event-stream"}
        problem = b'event: error\ndata: {"status":503,"code":"unavailable"}\n\n'
        for answer in ("hang up", (200, stream, b""), (200, stream, problem), (502, {}, b"<html>")):
            script = Scripted(self, answer)
            script.names_requests = False
            with self.assertRaises(UnavailableError) as caught:
                self.run_code(script.url)
            self.assertEqual(caught.exception.request_id, script.request_ids[0], answer)
        with self.assertRaises(ConnectionFailedError) as caught:
            self.run_code("http://127.0.0.1:1", max_retries=0)
        self.assertTrue(caught.exception.request_id)

    def test_the_time_to_wait_may_be_a_moment(self) -> None:
        moment = formatdate(time.time() + 3600, usegmt=True)
        for value, least, most in ((moment, 3500, 3601), ("soon", None, None)):
            script = Scripted(self, (503, {"retry-after": value}, {}))
            with self.assertRaises(UnavailableError) as caught:
                self.run_code(script.url, max_retries=0)
            waited = caught.exception.retry_after
            if least is None:
                self.assertIsNone(waited)
            else:
                self.assertTrue(least < waited <= most, waited)

    def test_a_refusal_of_every_address_of_a_host_is_tried_again(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        two = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))
            for host in ("127.0.0.1", "127.0.0.2")
        ]
        delays: list[float] = []
        with mock.patch("socket.getaddrinfo", lambda *_, **__: two):
            with self.assertRaisesRegex(ConnectionFailedError, "no service listens"):
                self.run_code(f"http://several.test:{port}", slept=delays.append)
        self.assertEqual(len(delays), 3)

    def test_a_prefix_of_the_url_is_kept(self) -> None:
        script = Scripted(self)
        self.run_code(f"{script.url}/behind/proxy/")
        self.assertEqual(script.requests[0][0], "/behind/proxy/v1/execute")


class TestSyncRetries(Retries, unittest.TestCase):
    def run_code(self, url, slept=None, work=5.0, on_stdout=None, **more):
        client = SandboxClient("remote", url, session_id="s", **more)
        self.addCleanup(client.close)
        if slept is None:
            return client.run_code("1", work, on_stdout)
        with mock.patch("time.sleep", slept):
            return client.run_code("1", work, on_stdout)


class TestAsyncRetries(Retries, unittest.TestCase):
    def run_code(self, url, slept=None, work=5.0, on_stdout=None, **more):
        async def run():
            async with AsyncSandboxClient("remote", url, session_id="s", **more) as client:
                if slept is None:
                    return await client.run_code("1", work, on_stdout)

                async def sleep(seconds: float) -> None:
                    slept(seconds)

                with mock.patch("cellblock.aio.asyncio.sleep", sleep):
                    return await client.run_code("1", work, on_stdout)

        return asyncio.run(run())


class TestAnswersThatAreNoRefusals(unittest.TestCase):
    def test_a_degraded_service_says_so_at_once(self) -> None:
        script = Scripted(self, (503, {"retry-after": "5"}, {"status": "degraded"}))
        with SandboxClient("remote", script.url) as client:
            self.assertEqual(client.health().status, "degraded")
        self.assertEqual(len(script.requests), 1)

    def test_a_session_that_has_no_room_says_when_to_come_back(self) -> None:
        script = Scripted(self, (503, {"retry-after": "10"}, {"error": "full"}))
        with SandboxClient("remote", script.url, max_retries=0) as client:
            with self.assertRaises(UnavailableError) as caught:
                client.get_or_create_session("ada", "t")
        self.assertEqual(caught.exception.retry_after, 10.0)


class TestArguments(unittest.TestCase):
    def test_a_remote_client_needs_a_url(self) -> None:
        for arguments in ({"mode": "remote"}, {"mode": "remote", "server_url": "127.0.0.1:8000"}):
            with self.assertRaisesRegex(ValueError, "server_url"):
                SandboxClient(**arguments)
        self.assertEqual(SandboxClient(server_url="http://h").mode, "remote")
        self.assertEqual(SandboxClient().mode, "local")
        with self.assertRaisesRegex(ValueError, "mode"):
            SandboxClient(mode="elsewhere")

    def test_settings_are_for_local_mode_and_a_key_for_remote_mode(self) -> None:
        with self.assertRaisesRegex(TypeError, "sandbox_backend"):
            SandboxClient("remote", "http://h", sandbox_backend="docker")
        with self.assertRaisesRegex(ValueError, "api_key"):
            SandboxClient("local", api_key="k")

    def test_a_setting_that_the_service_would_refuse_is_refused_in_its_words(self) -> None:
        for settings, words in (
            ({"sandbox_backend": "podman"}, "auto, docker, embedded"),
            ({"sandbox_memory_mb": 1}, "64 to 1048576"),
            ({"sandbox_memroy_mb": 64}, "sandbox_memroy_mb is not a setting.*sandbox_memory_mb"),
            ({"port": 80}, "port is not a setting of local mode"),
        ):
            with self.assertRaisesRegex(InvalidRequestError, words):
                SandboxClient("local", **settings)

    def test_values_may_be_written_as_python_writes_them(self) -> None:
        client = SandboxClient(
            allow_private_urls=False,
            sandbox_preload=["json", "csv"],
            sandbox_cpus=0.5,
            worker_id=None,
        )
        expected = {"allow_private_urls": "0", "sandbox_preload": "json,csv", "sandbox_cpus": "0.5"}
        self.assertEqual(client._settings, expected)

    def test_the_policy_of_local_mode_is_that_of_its_settings(self) -> None:
        client = SandboxClient(command_policy_allowed=["cat"])
        self.assertFalse(client.validate_command("ls"))
        self.assertTrue(client.validate_command("cat x"))
        self.assertTrue(SandboxClient(command_policy="off").validate_command("rm x"))


class TestKeys(unittest.TestCase):
    def test_the_key_is_sent_and_a_wrong_one_is_an_error(self) -> None:
        guarded = Service(SANDBOX_API_KEY="secret")
        self.addCleanup(guarded.stop)
        with SandboxClient("remote", guarded.url, "secret") as client:
            self.assertEqual(client.run_code("1 + 1").output, "2\n")
        for key in (None, "wrong"):
            with SandboxClient("remote", guarded.url, key) as client:
                with self.assertRaises(AuthenticationError) as caught:
                    client.run_code("1")
            self.assertEqual(
                (caught.exception.status, caught.exception.code), (401, "unauthorized")
            )

    def test_connections_are_kept_and_stale_ones_are_not_used(self) -> None:
        client = SandboxClient("remote", service().url)
        self.addCleanup(client.close)
        client.run_code("1")
        (kept,) = client._transport._idle
        client.run_code("1")
        self.assertIs(client._transport._idle[0][0], kept[0])
        kept[0].sock.shutdown(socket.SHUT_RDWR)
        self.assertEqual(client.run_code("1").output, "1\n")
        self.assertIsNot(client._transport._idle[0][0], kept[0])


if __name__ == "__main__":
    unittest.main()
