"""The console scripts: this process becomes the binary that the package brings along."""

from __future__ import annotations

import os
import sys

from ._local import HELPER


def main() -> None:
    """Hands everything to the binary: `run` starts the service, `help` lists the rest."""
    os.execv(HELPER, ["cellblock", *sys.argv[1:]])
