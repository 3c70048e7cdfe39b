"""Looks at everything the service is built from: licences, and where it comes from.

Read from `cargo metadata`, so it needs no tool of its own and no network. It cannot know of advisories: those are
a list on the internet (`cargo audit` reads it, where that can be reached).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

# Those that ask for no more than a notice, and the two file-level ones of crates that are used unchanged.
ALLOWED = {
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "NCSA",
    "OpenSSL",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
}
# Crates that have a licence file instead of a name; read, and found to be this.
BY_FILE = {"rust-criu": "MIT"}
REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"
PROJECT = Path(__file__).resolve().parents[2]


def is_allowed(expression: str) -> bool:
    """Whether an SPDX expression can be met: one side of each OR, both sides of each AND."""
    expression = expression.replace("/", " OR ")
    words = expression.replace("(", " ( ").replace(")", " ) ").split()
    value, rest = _any_of(words)
    return value and not rest


def _any_of(words: list[str]) -> tuple[bool, list[str]]:
    value, words = _all_of(words)
    while words and words[0] == "OR":
        other, words = _all_of(words[1:])
        value = value or other
    return value, words


def _all_of(words: list[str]) -> tuple[bool, list[str]]:
    value, words = _one(words)
    while words and words[0] == "AND":
        other, words = _one(words[1:])
        value = value and other
    return value, words


def _one(words: list[str]) -> tuple[bool, list[str]]:
    if words[0] == "(":
        value, words = _any_of(words[1:])
        return value and words[:1] == [")"], words[1:]
    name, words = words[0], words[1:]
    if words[:1] == ["WITH"]:
        name, words = f"{name} WITH {words[1]}", words[2:]
    return name in ALLOWED, words


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--offline"]
    asked = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    if asked.returncode != 0:
        # A machine that has never built the service has to fetch the list of what it is built from.
        asked = subprocess.run(command[:-1], cwd=PROJECT, capture_output=True, text=True)
    if asked.returncode != 0:
        print(asked.stderr)
        return 1
    packages = [p for p in json.loads(asked.stdout)["packages"] if p["source"] is not None]
    problems = []
    for package in packages:
        name = f"{package['name']} {package['version']}"
        if package["source"] != REGISTRY:
            problems.append(f"{name} comes from {package['source']}, not from crates.io")
        if not is_allowed(package["license"] or BY_FILE.get(package["name"], "none")):
            problems.append(f"{name} has the licence {package['license']}")
    print(
        "\n".join(problems)
        or f"{len(packages)} dependencies, all from crates.io, all licences allowed"
    )
    return 1 if problems or len(packages) < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
