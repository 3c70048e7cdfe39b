"""Compiles and runs one cell in the user's namespace and says how it ended.

It never talks to the host; the worker sends what `run` returns.
Whatever a cell raises ends in the outcome, never in the worker's loop.
"""

from __future__ import annotations

import builtins
from _ast import Expr, Expression, PyCF_ALLOW_TOP_LEVEL_AWAIT, PyCF_ONLY_AST
from types import CodeType

from cellblock_kernel import bundles, errors, figures
from cellblock_kernel.awaiting import Awaiting
from cellblock_kernel.guard import Guard
from cellblock_kernel.output import Output
from cellblock_kernel.private import BUILTINS as __builtins__  # noqa: F401
from cellblock_kernel.sources import Sources

_CO_COROUTINE = 0x80


class Outcome:
    """How a cell ended."""

    __slots__ = ("bundle", "error", "exception", "status")

    def __init__(self) -> None:
        """Well, until something goes wrong."""
        self.status = "ok"
        self.bundle: dict[str, str] | None = None
        self.error: dict[str, str] | None = None
        self.exception: BaseException | None = None


class Cells:
    """Runs cells one after another in one namespace."""

    def __init__(self, namespace: dict[str, object], output: Output, guard: Guard) -> None:
        """`namespace` is the dict of the module `__main__`."""
        self._namespace = namespace
        self._output = output
        self._guard = guard
        self._awaiting = Awaiting()
        self._flags = PyCF_ALLOW_TOP_LEVEL_AWAIT
        self._shown: object = None
        self.sources = Sources()

    def run(self, source: str, filename: str) -> Outcome:
        """Run one cell to its end, whatever that is."""
        outcome = Outcome()
        self._shown = None
        self.sources.add(filename, source)
        try:
            outcome.bundle = self._guard.call(self._evaluate, source, filename)
        except BaseException as error:  # this is where user code ends
            outcome.exception = error
        if figures.any_open() and self._output.in_worker:
            try:
                self._guard.call(self.show_figures)
            except BaseException as error:  # drawing runs user code too
                outcome.exception = outcome.exception or error
        if outcome.exception is not None:
            self._explain(outcome)
        return outcome

    def show_figures(self) -> None:
        """Send every open figure that the result does not show already."""
        for figure in figures.take_open(but_not=self._shown):
            self._output.display(bundles.bundle_of(figure))

    def _evaluate(self, source: str, filename: str) -> dict[str, str] | None:
        body, last = self._compile(source, filename)
        namespace = self._namespace
        if (body is not None and body.co_flags & _CO_COROUTINE) or (
            last is not None and last.co_flags & _CO_COROUTINE
        ):
            value = self._awaiting.run(self._run_awaiting(body, last))
        else:
            if body is not None:
                eval(body, namespace)
            if last is None:
                return None
            value = eval(last, namespace)
        return None if value is None else self._echo(value)

    async def _run_awaiting(self, body: CodeType | None, last: CodeType | None) -> object:
        value = None
        for code in (body, last):
            value = eval(code, self._namespace) if code is not None else None
            if code is not None and code.co_flags & _CO_COROUTINE:
                value = await value
        return value

    def _compile(self, source: str, filename: str) -> tuple[CodeType | None, CodeType | None]:
        """The statements, and the final expression if there is one; both before either runs."""
        tree = compile(source, filename, "exec", self._flags | PyCF_ONLY_AST, True)
        statements = tree.body
        final = statements.pop() if statements and type(statements[-1]) is Expr else None
        body = last = None
        if statements:
            body = compile(tree, filename, "exec", self._flags, True)
            if "__future__" in source:
                self._keep_future_flags(body)
        if final is not None:
            last = compile(Expression(final.value), filename, "eval", self._flags, True)
        return body, last

    def _keep_future_flags(self, code: CodeType) -> None:
        """`from __future__ import …` holds for later cells too, as in the standard REPL."""
        import __future__

        for name in __future__.all_feature_names:
            self._flags |= code.co_flags & getattr(__future__, name).compiler_flag

    def _echo(self, value: object) -> dict[str, str]:
        builtins._ = value
        bundle = bundles.bundle_of(value)
        bundle["text/plain"] = self._output.cut(bundle["text/plain"])
        if figures.is_figure(value):
            self._shown = value
        return bundle

    def _explain(self, outcome: Outcome) -> None:
        error = outcome.exception
        if isinstance(error, SystemExit) and not error.code:
            return
        outcome.status = "interrupted" if isinstance(error, KeyboardInterrupt) else "error"
        outcome.bundle = None
        try:
            self.sources.publish()
            outcome.error = self._guard.call(errors.describe, error)
        except BaseException:  # interrupted while an endless __str__ ran
            name = type.__getattribute__(type(error), "__name__")
            outcome.error = {"name": name, "value": "", "traceback": name + "\n"}
