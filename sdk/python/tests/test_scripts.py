"""The console scripts, and the example script that is the same in both modes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import unittest
import urllib.request
from pathlib import Path

from support import LOCAL, service, wait_for

SCRIPTS = Path(sysconfig.get_path("scripts"))
EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
INSTALLED = (SCRIPTS / "sbs").exists()


class TestScripts(unittest.TestCase):
    @unittest.skipUnless(INSTALLED, "console scripts: the package is not installed here")
    def test_all_three_names_are_the_same_program(self) -> None:
        for name in ("cellblock", "sbs", "session-based-sandbox"):
            told = subprocess.run(
                [SCRIPTS / name, "version"], capture_output=True, text=True, check=True
            )
            self.assertRegex(told.stdout, r"^cellblock \d")
            told = subprocess.run(
                [SCRIPTS / name, "run", "--help"], capture_output=True, text=True, check=True
            )
            self.assertIn("127.0.0.1:8000", told.stdout)

    @unittest.skipUnless(INSTALLED, "console scripts: the package is not installed here")
    def test_run_starts_the_service_where_it_is_told_to(self) -> None:
        root = tempfile.mkdtemp(prefix="cellblock-sdk-")
        self.addCleanup(shutil.rmtree, root, ignore_errors=True)
        environment = {
            **os.environ,
            "WORK_ROOT": root,
            "EMBEDDED_S3_ADDR": "127.0.0.1:0",
            "PORT": "1",
        }
        environment.update(
            {"SANDBOX_BACKEND": "embedded", "SANDBOX_POOL_SIZE": "0", "LOG_LEVEL": "error"}
        )
        command = [SCRIPTS / "sbs", "run", "--host", "127.0.0.1", "--port", "0"]
        process = subprocess.Popen(command, env=environment, cwd="/")
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        file = wait_for("the service", lambda: _read(root))
        self.assertNotEqual(file["address"], "127.0.0.1:1")
        with urllib.request.urlopen(f"http://{file['address']}/health") as answer:
            self.assertEqual(json.load(answer)["status"], "ok")
        self.assertEqual(file["pid"], process.pid, "the script becomes the service")

    @unittest.skipUnless(INSTALLED, "console scripts: the package is not installed here")
    def test_an_option_that_is_none_is_refused(self) -> None:
        told = subprocess.run(
            [SCRIPTS / "sbs", "run", "--prot", "1"], capture_output=True, text=True
        )
        self.assertEqual((told.returncode, told.stdout), (2, ""))
        self.assertIn("--prot", told.stderr)


class TestTheSameScript(unittest.TestCase):
    def test_it_says_the_same_in_both_modes(self) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "CELLBLOCK_URL"}
        environment.update(
            {
                name.upper(): str(int(value) if isinstance(value, bool) else value)
                for name, value in LOCAL.items()
            }
        )
        said = []
        for more in ({}, {"CELLBLOCK_URL": service().url}):
            done = subprocess.run(
                [sys.executable, EXAMPLES / "quickstart.py"],
                env={**environment, **more},
                capture_output=True,
                text=True,
                timeout=120,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            said.append(done.stdout)
        self.assertEqual(said[0], said[1])
        self.assertIn("live: 14\n['14', '[0, 1, 4, 9]'] kept\nsquares.csv b'0,1,4,9'\na\n", said[0])
        self.assertIn("curl", said[0])


def _read(root: str) -> dict:
    try:
        return json.loads(Path(root, "service.json").read_text())
    except (OSError, ValueError):
        return {}


if __name__ == "__main__":
    unittest.main()
