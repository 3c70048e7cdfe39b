"""The worker: takes cells from its link, runs them in the main thread, sends what they produce.

It never starts a thread, and never trusts that anything user code can reach is still as it was.
Between two cells its descriptors, signal handler and standard streams are in order again.
"""

from __future__ import annotations

import builtins
import sys
from os import O_RDWR, _exit, chdir, getcwd
from os import open as open_fd
from select import POLLIN, poll

from cellblock_kernel import bundles, figures, rehearsal, trusted
from cellblock_kernel.cells import Cells, Outcome
from cellblock_kernel.descriptors import Kept, Standard
from cellblock_kernel.frames import FRAME_LIMIT, encode
from cellblock_kernel.guard import Guard
from cellblock_kernel.link import Link
from cellblock_kernel.output import Output, write_all
from cellblock_kernel.page import Page
from cellblock_kernel.private import BUILTINS as __builtins__  # noqa: F401
from cellblock_kernel.text import CellText, NoInput

_WARM_UP_AFTER_MILLIS = 50
_WARM_UP = ("linecache", "traceback")
_DEFAULT_OUTPUT_BYTES = 200_000


class Worker:
    """One life of the user's variables."""

    def __init__(
        self,
        link_fd: int,
        handoff_fd: int,
        pipes: tuple[int, ...],
        page: Page,
        generation: int,
        workspace: str,
    ) -> None:
        """Take over what the supervisor forked us with."""
        self._generation = generation
        self._workspace = workspace
        self._count = 0
        self._warm = list(_WARM_UP)
        null = Kept(open_fd("/dev/null", O_RDWR))
        outputs = [Kept(fd) for fd in pipes]
        self._standard = Standard([null, *outputs])
        self._link = Link(link_fd, handoff_fd)
        self._guard = Guard()
        self._output = Output(self._link, page, outputs, self._guard)
        self._streams = (NoInput(), CellText(self._output, 0), CellText(self._output, 1))
        self._cells = Cells(self._make_main(), self._output, self._guard)
        figures.show = self._cells.show_figures
        self._tidy()

    def _make_main(self) -> dict[str, object]:
        """A real module `__main__`, so that pickle and multiprocessing find the user's names."""
        main = type(sys)("__main__")
        main.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = main
        sys.argv = [""]
        sys.path.insert(0, self._workspace)
        builtins.display = self._display
        return main.__dict__

    def serve(self) -> None:
        """Run cells until the process ends."""
        rehearsal.run(self._output, self._guard)
        self._tidy()
        self._say_hello()
        while True:
            if self._warm:
                self._warm_up()
            frame = self._link.receive()
            if frame is None:
                self._link.renew()
                self._say_hello()
            elif frame.get("op") == "execute":
                self._execute(frame)

    def _say_hello(self) -> None:
        self._link.send_frame(
            encode(
                {
                    "op": "hello",
                    "role": "cell",
                    "generation": self._generation,
                    "execution_count": self._count,
                }
            )
        )

    def _warm_up(self) -> None:
        """Import while idle what the first traceback will need."""
        poller = poll()
        poller.register(self._link.fileno(), POLLIN)
        while self._warm and not poller.poll(_WARM_UP_AFTER_MILLIS):
            trusted.load(self._warm.pop())

    def _execute(self, frame: dict[str, object]) -> None:
        execution, code = frame.get("id"), frame.get("code")
        limit = frame.get("max_output_bytes", _DEFAULT_OUTPUT_BYTES)
        if type(execution) is not int or type(code) is not str or type(limit) is not int:
            return
        self._count += 1
        self._output.begin(execution, limit)
        outcome = self._cells.run(code, f"<cell {self._count}>")
        if not self._output.in_worker:
            self._leave_fork(outcome)
        self._output.finish(lambda *facts: self._done_frame(outcome, *facts))
        if outcome.exception is not None:
            self._remember(outcome.exception)
        self._tidy()

    def _done_frame(self, outcome: Outcome, execution: int, truncated: bool) -> bytes:
        """The bytes of the done frame, within the limit."""
        frame: dict[str, object] = {
            "op": "done",
            "id": execution,
            "status": outcome.status,
            "execution_count": self._count,
            "truncated": truncated,
        }
        if outcome.bundle is not None:
            frame["result"] = outcome.bundle
        if outcome.error is not None:
            frame["error"] = outcome.error
        payload = encode(frame)
        if len(payload) > FRAME_LIMIT:
            # Only text full of control characters grows this much in JSON.
            frame["truncated"] = True
            for field in ("result", "error"):
                for key, text in frame.get(field, {}).items():
                    frame[field][key] = text[: FRAME_LIMIT // 32]
            payload = encode(frame)
        return payload

    def _remember(self, error: BaseException) -> None:
        """Where pdb.pm() and friends look for the last exception."""
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__

    def _tidy(self) -> None:
        """Undo what a cell did to things that are not its own."""
        self._standard.mend()
        self._link.mend()
        self._guard.install()
        sys.stdin, sys.stdout, sys.stderr = self._streams
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = self._streams
        try:
            getcwd()
        except OSError:
            self._return_to_workspace()
        finder = sys.path_importer_cache.get(self._workspace)
        if finder is not None:
            # The host may write a module in the same clock tick in which a cell looked for it.
            finder.invalidate_caches()

    def _return_to_workspace(self) -> None:
        try:
            chdir(self._workspace)
        except OSError:
            pass

    def _leave_fork(self, outcome: Outcome) -> None:
        """A child that user code forked came to the end of the cell: end it, as a script would."""
        self._output.flush()
        error = outcome.exception
        code = 0 if error is None else 1
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(bool(error.code))
        elif outcome.error is not None:
            write_all(2, outcome.error["traceback"].encode("utf-8", "replace"))
        _exit(code & 0xFF)

    def _display(self, *values: object, **_options: object) -> None:
        """Show values in the answer's results, each in its richest forms."""
        for value in values:
            bundle = bundles.bundle_of(value)
            if self._output.in_worker:
                self._output.display(bundle)
            else:
                write_all(1, (bundle["text/plain"] + "\n").encode("utf-8", "replace"))
