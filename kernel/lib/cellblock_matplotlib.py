"""The matplotlib backend of Cellblock: draws with Agg, shows figures through the kernel.

It never opens a window; in a process that is not the kernel's worker show() does nothing.
Figures are shown once and closed.
"""

import sys

from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg

FigureCanvas = FigureCanvasAgg
FigureManager = FigureManagerBase


def show(*_args: object, **_options: object) -> None:
    """Send every open figure to the caller and close it."""
    figures = sys.modules.get("cellblock_kernel.figures")
    if figures is not None:
        figures.show()
