"""matplotlib figures: shown once, at plt.show() or at the end of the cell.

Needs CELLBLOCK_TEST_PACKAGES to name a directory with matplotlib; skipped otherwise.
"""

from __future__ import annotations

import base64
import os
import unittest

from test_cells import KernelTest

PACKAGES = os.environ.get("CELLBLOCK_TEST_PACKAGES", "/opt/cellblock/packages")
MISSING = not os.path.isdir(os.path.join(PACKAGES, "matplotlib"))


@unittest.skipIf(MISSING, f"no matplotlib in {PACKAGES} (set CELLBLOCK_TEST_PACKAGES)")
class TestFigures(KernelTest):
    """The backend cellblock_matplotlib."""

    env = {"CELLBLOCK_PACKAGES": PACKAGES}

    def assert_one_figure(self, displays: list[dict]) -> None:
        self.assertEqual(len(displays), 1)
        png = base64.b64decode(displays[0]["image/png"])
        self.assertTrue(png.startswith(b"\x89PNG"))
        self.assertIn("Figure", displays[0]["text/plain"])

    def test_open_figures_are_shown_at_the_end_of_the_cell(self) -> None:
        answer = self.run_ok("import matplotlib.pyplot as plt\nplt.plot([1, 2]);\nplt.title('x');")
        self.assert_one_figure(answer.displays)
        self.assertEqual(self.run_ok("plt.get_fignums()").plain, "[]")

    def test_show_sends_figures_at_once_and_only_once(self) -> None:
        answer = self.run_ok(
            "import matplotlib.pyplot as plt\nplt.plot([1]); plt.show(); print('after')"
        )
        self.assert_one_figure(answer.displays)
        self.assertEqual([f["op"] for f in answer.frames], ["display", "stream", "done"])

    def test_a_figure_as_result_is_not_shown_twice(self) -> None:
        answer = self.run_ok("import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nfig")
        self.assertEqual(answer.displays, [])
        self.assert_one_figure([answer.result])

    def test_the_last_expression_is_still_echoed(self) -> None:
        answer = self.run_ok("import matplotlib.pyplot as plt\nplt.plot([1, 2])")
        self.assertIn("Line2D", answer.plain)
        self.assert_one_figure(answer.displays)

    def test_figures_are_shown_after_an_error_too(self) -> None:
        answer = self.kernel.run("import matplotlib.pyplot as plt\nplt.plot([1])\n1/0")
        self.assertEqual(answer.status, "error")
        self.assert_one_figure(answer.displays)

    def test_a_figure_that_cannot_be_drawn_is_an_error(self) -> None:
        answer = self.kernel.run("import matplotlib.pyplot as plt\nplt.title('$\\\\frac{$')\n1")
        self.assertEqual(answer.status, "error")
        self.run_ok("plt.close('all')")

    def test_scripts_started_by_a_cell_find_packages_and_backend(self) -> None:
        with open(os.path.join(self.kernel.workspace, "script.py"), "w") as file:
            file.write("import matplotlib.pyplot as plt\nplt.plot([1]); plt.show(); print('ok')\n")
        code = "import subprocess, sys; subprocess.run([sys.executable, 'script.py']);"
        self.assertEqual(self.run_ok(code).text(), "ok\n")


if __name__ == "__main__":
    unittest.main()
