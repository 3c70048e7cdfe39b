"""Shows matplotlib figures: all that are open at the end of a cell or at plt.show().

It never imports matplotlib; it only looks at what user code has imported.
A figure that was shown is closed, so that it is shown once.
"""

from __future__ import annotations

import sys
from io import BytesIO

from cellblock_kernel.private import BUILTINS as __builtins__  # noqa: F401


def show() -> None:
    """Send and close all open figures; the worker puts its own function here."""


def is_figure(value: object) -> bool:
    """True for a matplotlib Figure."""
    module = sys.modules.get("matplotlib.figure")
    figure = getattr(module, "Figure", None)
    return isinstance(figure, type) and isinstance(value, figure)


def png_of(figure: object) -> bytes:
    """Draw a figure at its own resolution."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=figure.dpi, bbox_inches="tight")
    return buffer.getvalue()


def any_open() -> bool:
    """True if pyplot holds a figure; costs next to nothing."""
    helpers = sys.modules.get("matplotlib._pylab_helpers")
    return helpers is not None and bool(helpers.Gcf.figs)


def take_open(but_not: object = None) -> list[object]:
    """Close every open figure in pyplot's eyes and give them back, oldest first."""
    if not any_open():
        return []
    managers = sys.modules["matplotlib._pylab_helpers"].Gcf
    figures = [manager.canvas.figure for manager in managers.get_all_fig_managers()]
    managers.destroy_all()
    return [figure for figure in figures if figure is not but_not]
