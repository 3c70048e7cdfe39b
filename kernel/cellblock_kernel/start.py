"""Puts the kernel together: environment, import path, preloaded packages, supervisor.

It never imports from the workspace, which the sandbox's code can write.
After it ran, the environment that user code sees names no setting of the kernel.
"""

from __future__ import annotations

import os
import sys

from cellblock_kernel.private import BUILTINS as __builtins__  # noqa: F401

_CACHE = "/tmp/.cache"
_MATPLOTLIB_CONFIG = _CACHE + "/matplotlib"
_REASON_LIMIT = 300


def run(kernel_dir: str) -> None:
    """Set everything up and serve for ever."""
    environ = os.environ
    socket_path = environ.get("CELLBLOCK_SOCKET") or "/run/cellblock/kernel.sock"
    if socket_path.startswith("@"):
        socket_path = "\0" + socket_path[1:]
    packages = environ.get("CELLBLOCK_PACKAGES") or "/opt/cellblock/packages"
    workspace = environ.get("CELLBLOCK_WORKSPACE") or "/workspace"
    preload = [name.strip() for name in environ.get("CELLBLOCK_PRELOAD", "").split(",")]
    for name in [name for name in environ if name.startswith("CELLBLOCK_")]:
        del environ[name]
    _extend_import_path(packages, os.path.join(kernel_dir, "lib"))
    _set_environment()
    _copy_font_list(packages)
    failed = [why for name in preload if name for why in _preload(name)]

    from cellblock_kernel.supervisor import Supervisor

    Supervisor(socket_path, workspace, failed).run()


def _extend_import_path(packages: str, lib: str) -> None:
    if sys.flags.no_site:
        _stand_in_for_site()
    extra = [packages, lib] if os.path.isdir(packages) else [lib]
    sys.path += extra
    # Scripts that a cell starts with `python3 script.py` find the same packages.
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(extra + ([inherited] if inherited else []))


def _stand_in_for_site() -> None:
    """With `-S` start-up skips slow .pth files, but site-packages and exit() are still wanted."""
    import site

    sys.path += [path for path in site.getsitepackages() if os.path.isdir(path)]
    site.setquit()


def _set_environment() -> None:
    os.environ.update(
        {
            "HOME": "/tmp",
            "TMPDIR": "/tmp",
            "XDG_CACHE_HOME": _CACHE,
            "XDG_CONFIG_HOME": "/tmp/.config",
            "MPLCONFIGDIR": _MATPLOTLIB_CONFIG,
            "MPLBACKEND": "module://cellblock_matplotlib",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
    )
    sys.dont_write_bytecode = True


def _copy_font_list(packages: str) -> None:
    """Spare the first `import matplotlib` its search for fonts, which takes seconds."""
    source = os.path.join(packages, ".matplotlib")
    try:
        names = os.listdir(source)
        os.makedirs(_MATPLOTLIB_CONFIG, exist_ok=True)
        for name in names:
            with open(os.path.join(source, name), "rb") as reader:
                with open(os.path.join(_MATPLOTLIB_CONFIG, name), "wb") as writer:
                    writer.write(reader.read())
    except OSError:
        pass


def _preload(name: str) -> list[str]:
    """Import one package; what went wrong, if anything did."""
    try:
        __import__(name)
    except BaseException as error:  # a package may raise anything, even SystemExit
        return [f"{name}: {type(error).__name__}: {error}"[:_REASON_LIMIT]]
    return []
