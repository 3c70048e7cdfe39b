"""The API against its own description, and the page that shows it in a real browser.

CELLBLOCK_BINARY names the binary; schemathesis must be importable. Without chromium the page's test is skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

BINARY = os.environ["CELLBLOCK_BINARY"]
PATIENCE_SECS = 60
CHECKS = (
    "not_a_server_error,status_code_conformance,"
    "content_type_conformance,response_schema_conformance"
)
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


class TestDescription(unittest.TestCase):
    """One service for all of it."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.work_root = tempfile.mkdtemp(prefix="cellblock-openapi-")
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        cls.environment = {
            **kept,
            "WORK_ROOT": cls.work_root,
            "PORT": "0",
            "EMBEDDED_S3_ADDR": "127.0.0.1:0",
            "SANDBOX_BACKEND": "embedded",
            "SANDBOX_MAX_TOTAL": "500",
            "LOG_LEVEL": "error",
        }
        cls.service = subprocess.Popen([BINARY, "serve"], env=cls.environment, cwd="/")
        path = os.path.join(cls.work_root, "service.json")
        deadline = time.monotonic() + PATIENCE_SECS
        while not os.path.exists(path) and time.monotonic() < deadline:
            time.sleep(0.02)
        with open(path) as file:
            cls.base = f"http://{json.load(file)['address']}"

    @classmethod
    def tearDownClass(cls) -> None:
        cls.service.kill()
        cls.service.wait()
        subprocess.run([BINARY, "purge"], env=cls.environment, cwd="/", check=True)
        shutil.rmtree(cls.work_root, ignore_errors=True)

    def test_no_request_gets_a_5xx_or_an_answer_that_is_not_described(self) -> None:
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{self.base}/openapi.json"),
            *("--checks", CHECKS, "--phases", "examples,fuzzing", "--max-examples", "20"),
            *("--seed", "1", "--request-timeout", "30", "--no-color"),
            # What lies behind it is a protocol of its own.
            *("--exclude-path", "/mcp"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400)
        self.assertEqual(done.returncode, 0, done.stdout[-6000:] + done.stderr[-2000:])
        self.assertIsNone(self.service.poll(), "the service has ended")

    @unittest.skipIf(BROWSER is None, "the page in a browser: needs chromium")
    def test_the_page_shows_every_dialect_in_a_browser(self) -> None:
        profile = tempfile.mkdtemp(prefix="cellblock-browser-")
        self.addCleanup(shutil.rmtree, profile, ignore_errors=True)
        command = [
            *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"),
            *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
            *("--disable-sync", f"--user-data-dir={profile}", "--virtual-time-budget=5000"),
            *("--dump-dom", f"{self.base}/docs"),
        ]
        page = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
        for part in ("Cellblock API", "/v1/execute", "/create_session", "/sessions/{id}/step"):
            self.assertTrue(part in page, part)
        for dialect in ("v1", "threads", "sessions", "tools", "mcp"):
            self.assertTrue(f"<h2>{dialect}</h2>" in page, dialect)


if __name__ == "__main__":
    unittest.main()
