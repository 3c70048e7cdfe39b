"""What the tests share: a service of their own for remote mode, settings for local mode, and looks at this host.

Each test class runs once per mode. CELLBLOCK_TEST_BACKEND names the backend (embedded by default).
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Optional

from cellblock import AsyncSandboxClient, SandboxClient
from cellblock._local import HELPER

PATIENCE_SECONDS = 60
BACKEND = os.environ.get("CELLBLOCK_TEST_BACKEND", "embedded")
LOCAL = {"sandbox_backend": BACKEND, "sandbox_pool_size": 0, "allow_private_urls": True}


def wait_for(what: str, probe: Callable[[], Any]) -> Any:
    """Polls until `probe` gives something; how a test sees what happens in other processes."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if found := probe():
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited too long for {what}")


class Service:
    """The real service, as remote mode meets it."""

    def __init__(self, **settings: str) -> None:
        self.work_root = tempfile.mkdtemp(prefix="cellblock-sdk-")
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        self.environment = {
            **kept,
            "WORK_ROOT": self.work_root,
            "PORT": "0",
            "EMBEDDED_S3_ADDR": "127.0.0.1:0",
            "SANDBOX_BACKEND": BACKEND,
            "SANDBOX_POOL_SIZE": "0",
            "SANDBOX_QUEUE_MAX": "200",
            "ALLOW_PRIVATE_URLS": "1",
            "LOG_LEVEL": "error",
            **settings,
        }
        self.process = subprocess.Popen([HELPER, "serve"], env=self.environment, cwd="/")
        self.url = f"http://{wait_for('the service', self._address)}"
        atexit.register(self.stop)

    def _address(self) -> Optional[str]:
        assert self.process.poll() is None, "the service ended"
        try:
            return json.loads(Path(self.work_root, "service.json").read_text())["address"]
        except (OSError, ValueError):
            return None

    def stop(self) -> None:
        """Ends it with all its sandboxes."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            subprocess.run(
                [HELPER, "purge"], env=self.environment, cwd="/", check=True, capture_output=True
            )
            shutil.rmtree(self.work_root, ignore_errors=True)


_service: Optional[Service] = None


def service() -> Service:
    """One for all tests of this process."""
    global _service
    if _service is None:
        _service = Service()
    return _service


def arguments(mode: str) -> dict[str, Any]:
    """What makes a client of that mode."""
    if mode == "remote":
        return {"mode": "remote", "server_url": service().url}
    return {"mode": "local", "sandbox_queue_max": 200, **LOCAL}


class Mode:
    """Mixed into a test case to run it in one mode; see `both_modes`."""

    mode: str

    def client(self, **more: Any) -> SandboxClient:
        client = SandboxClient(**{**arguments(self.mode), **more})
        self.addCleanup(client.close)  # type: ignore[attr-defined]
        return client

    def async_client(self, **more: Any) -> AsyncSandboxClient:
        return AsyncSandboxClient(**{**arguments(self.mode), **more})


def both_modes(case: type) -> None:
    """Puts `CaseInLocalMode` and `CaseInRemoteMode` beside a mixin of tests."""
    import sys
    import unittest

    module = sys.modules[case.__module__]
    for mode in ("local", "remote"):
        name = f"{case.__name__}In{mode.capitalize()}Mode"
        bases = (case, Mode, unittest.TestCase)
        setattr(module, name, type(name, bases, {"mode": mode, "__module__": case.__module__}))


def private_work_roots() -> set[str]:
    """Those of local mode on this host, by name."""
    home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    folder = home / "cellblock" / "local"
    return {path.name for path in folder.iterdir() if path.is_dir()} if folder.is_dir() else set()


def sandbox_pids(work_root: str) -> list[int]:
    """Inits of the embedded sandboxes of a work root that are alive."""
    pids = []
    for record in Path(work_root, "containers").glob("*/init.json"):
        try:
            pid = json.loads(record.read_text())["pid"]
        except (OSError, ValueError):
            continue
        if is_alive(pid):
            pids.append(pid)
    return pids


def is_alive(pid: int) -> bool:
    """A process that only waits for its parent to take note of its end is not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
