"""What a worker does before its first cell is seen by nobody.

The package that is rehearsed here is a double that notes what is done to it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import unittest

from test_cells import KernelTest

_PANDAS = """
made = 0
class DataFrame:
    def __init__(self, *_data):
        global made
        made += 1
        print("noise of a library")
        raise RuntimeError("this one is broken")
"""


class TestRehearsal(KernelTest):
    """The first cell finds everything as if nothing had run before it."""

    @classmethod
    def setUpClass(cls) -> None:
        """Start a kernel with that package."""
        packages = tempfile.mkdtemp(prefix="cellblock-test-packages-")
        cls.addClassCleanup(shutil.rmtree, packages)
        os.chmod(packages, 0o755)
        with open(os.path.join(packages, "pandas.py"), "w") as file:
            file.write(_PANDAS)
        cls.env = {"CELLBLOCK_PRELOAD": "linecache,pandas", "CELLBLOCK_PACKAGES": packages}
        super().setUpClass()

    def test_a_rehearsal_took_place_and_left_no_trace(self) -> None:
        answer = self.run_ok("import pandas; pandas.made")
        self.assertEqual(answer.plain, "1")
        self.assertEqual((answer.text(), answer.displays), ("", []))
        self.assertEqual(answer.end["execution_count"], 1)
        names = "sorted(name for name in dir() if not name.startswith('__'))"
        traces = "'<rehearsal>' in linecache.cache, hasattr(sys, 'last_value')"
        answer = self.run_ok(f"import linecache, sys\n{names}, {traces}")
        self.assertEqual(answer.plain, "(['linecache', 'pandas', 'sys'], False, False)")

    def test_a_worker_that_takes_over_has_rehearsed_too(self) -> None:
        self.kernel.ask("restart")
        self.kernel.accept_cell()
        answer = self.run_ok("import pandas; pandas.made")
        self.assertEqual((answer.plain, answer.end["execution_count"]), ("1", 1))


if __name__ == "__main__":
    unittest.main()
