"""Runs a few harmless cells before a worker's first, which then need not wait for its memory.

After a fork every page of memory that is written to is copied first, and running code writes
everywhere (reference counts).
It never leaves a trace: its cells have names of their own, print nothing, and are counted nowhere.
"""

from __future__ import annotations

import sys
from io import StringIO

from cellblock_kernel.cells import Cells
from cellblock_kernel.guard import Guard
from cellblock_kernel.output import Output
from cellblock_kernel.private import BUILTINS as __builtins__  # noqa: F401

_FILENAME = "<rehearsal>"
_ALWAYS = "total = sum([n * n for n in range(8)])\ntext = f'{total}'"
# What is preloaded costs the first cell that uses it the most.
_IF_LOADED = {
    "numpy": "import numpy\ntotal = numpy.arange(8).reshape(2, 4).sum()",
    "pandas": "import pandas\n"
    "size = pandas.DataFrame({'a': [1, 2]}).size + pandas.DataFrame().size",
}


def run(output: Output, guard: Guard) -> None:
    """Go through the motions; what goes wrong is the affair of the cell that really does it.

    The caller puts the standard streams back.
    """
    sys.stdout = sys.stderr = StringIO()
    cells = Cells({}, output, guard)
    cells.run(_ALWAYS, _FILENAME)
    for name, source in _IF_LOADED.items():
        if name in sys.modules:
            cells.run(source, _FILENAME)
    linecache = sys.modules.get("linecache")
    if linecache is not None:
        linecache.cache.pop(_FILENAME, None)
