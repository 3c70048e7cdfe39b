"""The build backend: maturin for the extension module, and beside it the binary `cellblock`.

The binary makes containers for local mode and is what the console scripts run. It comes from the same workspace, so
cargo compiles what both share once. CELLBLOCK_BUILD_PROFILE picks cargo's profile: release, or dev for tests.
"""

import os
import shutil
import subprocess
from pathlib import Path

import maturin

PACKAGE = Path(__file__).resolve().parent.parent
WORKSPACE = PACKAGE.parent.parent
PROFILE = os.environ.get("CELLBLOCK_BUILD_PROFILE") or "release"
# What is installed for good needs no debug information, which is most of its size.
STRIP = PROFILE != "dev"

get_requires_for_build_wheel = maturin.get_requires_for_build_wheel
get_requires_for_build_editable = maturin.get_requires_for_build_editable


def _set_arguments():
    os.environ["MATURIN_PEP517_ARGS"] = f"--profile {PROFILE} --locked" + " --strip" * STRIP


def _prepare():
    """Builds the binary and puts it where maturin packs it."""
    _set_arguments()
    command = ["cargo", "build", "--locked", "--profile", PROFILE, "--package", "cellblock"]
    subprocess.run([*command, "--bin", "cellblock"], cwd=WORKSPACE, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR") or WORKSPACE / "target")
    built = WORKSPACE / target / ("debug" if PROFILE == "dev" else PROFILE) / "cellblock"
    place = PACKAGE / "python" / "cellblock" / "_bin" / "cellblock"
    place.parent.mkdir(exist_ok=True)
    # A new file each time: one that runs cannot be written to.
    place.unlink(missing_ok=True)
    shutil.copy2(built, place)
    if STRIP and shutil.which("strip"):
        subprocess.run(["strip", "--strip-debug", place], check=True)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """For `pip install`."""
    _prepare()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """For `pip install --editable`."""
    _prepare()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """What pip asks for before it builds."""
    _set_arguments()
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_sdist(sdist_directory, config_settings=None):
    """There is none: the package is built from the whole repository."""
    raise RuntimeError(
        "a source distribution is not supported; build a wheel inside the repository"
    )
