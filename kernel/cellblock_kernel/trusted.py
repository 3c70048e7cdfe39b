"""Imports for the kernel's own use after user code has run.

It never looks in the workspace, where a `token.py` or `random.py` would shadow Python's own.
`sys.path` is the user's again as soon as an import is through.
"""

from __future__ import annotations

import sys
from types import ModuleType

from cellblock_kernel.private import BUILTINS as __builtins__  # noqa: F401

_path = list(sys.path)


def load(name: str) -> ModuleType:
    """The module `name`, from the import path as it was before the first cell."""
    module = sys.modules.get(name)
    if module is not None:
        return module
    users_path = sys.path
    sys.path = _path
    try:
        __import__(name)
    finally:
        sys.path = users_path
    return sys.modules[name]
