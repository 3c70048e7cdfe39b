"""A copy of the built-in names, taken before any user code runs.

Every kernel module starts with `from cellblock_kernel.private import BUILTINS as __builtins__`.
It never follows later changes, so a cell that patches or deletes builtins cannot break the loop.
"""

import builtins

# Functions look built-in names up in their module's `__builtins__`; a plain dict is allowed there.
BUILTINS = dict(vars(builtins))
