"""Launcher of the Cellblock kernel: `python3 -I main.py`, usually as PID 1 of a sandbox.

It owns the way from a bare interpreter to the supervisor, and never holds logic of its own.
Its directory leaves `sys.path` at once, so that user code cannot import kernel files by accident.
"""

import os
import sys


def main() -> None:
    """Start the supervisor; it does not return."""
    kernel_dir = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, kernel_dir)
    from cellblock_kernel import start

    sys.path.remove(kernel_dir)
    start.run(kernel_dir)


if __name__ == "__main__":
    main()
