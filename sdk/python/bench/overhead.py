"""What a call costs from Python, in this process and over HTTP, asked in turns in one run.

Both cores have the same settings; the service is the binary of the same build. Prints a table for docs/PERFORMANCE.md.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Awaitable, Callable

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from cellblock import AsyncSandboxClient, SandboxClient
from support import arguments, service

ROUNDS = 1500
WARM_UP = 200
MODES = ("local", "remote")


def microseconds(times: list[float], part: float) -> float:
    """A percentile."""
    return sorted(times)[int(len(times) * part)] * 1e6


def measure(work: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Both modes in turns, so that whatever disturbs the machine disturbs both."""
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    for turn in range(ROUNDS + WARM_UP):
        for mode in MODES:
            before = time.perf_counter()
            work[mode]()
            if turn >= WARM_UP:
                times[mode].append(time.perf_counter() - before)
    return times


async def measure_async(work: dict[str, Callable[[], Awaitable[object]]]) -> dict[str, list[float]]:
    """As `measure`."""
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    for turn in range(ROUNDS + WARM_UP):
        for mode in MODES:
            before = time.perf_counter()
            await work[mode]()
            if turn >= WARM_UP:
                times[mode].append(time.perf_counter() - before)
    return times


def row(name: str, times: dict[str, list[float]]) -> None:
    """One line of the table."""
    cells = [f"{microseconds(times[mode], part):.0f} µs" for mode in MODES for part in (0.5, 0.99)]
    saved = microseconds(times["remote"], 0.5) - microseconds(times["local"], 0.5)
    print(f"| {name} | {' | '.join(cells)} | {saved:.0f} µs |", flush=True)


def main() -> None:
    """Sync calls first, then async ones."""
    print("| call | local p50 | local p99 | remote p50 | remote p99 | local saves (p50) |")
    print("|---|---|---|---|---|---|")
    clients = {mode: SandboxClient(**arguments(mode)) for mode in MODES}
    for client in clients.values():
        client.run_code("x = 0")
    nothing = {mode: client.interrupt for mode, client in clients.items()}
    row("a call that does nothing (`interrupt` of an idle session)", measure(nothing))
    cell = {
        mode: lambda client=client: client.run_code("x += 1; x") for mode, client in clients.items()
    }
    row('`run_code("x += 1; x")`', measure(cell))
    stream = {
        mode: lambda client=client: client.run_code("x += 1; x", on_stdout=str)
        for mode, client in clients.items()
    }
    row("the same, streamed to a callback", measure(stream))
    for client in clients.values():
        client.close()

    async def tasks() -> None:
        clients = {mode: AsyncSandboxClient(**arguments(mode)) for mode in MODES}
        for client in clients.values():
            await client.run_code("x = 0")
        row(
            "async: a call that does nothing",
            await measure_async({m: c.interrupt for m, c in clients.items()}),
        )
        cell = {
            mode: lambda client=client: client.run_code("x += 1; x")
            for mode, client in clients.items()
        }
        row('async: `run_code("x += 1; x")`', await measure_async(cell))
        for client in clients.values():
            await client.close()

    asyncio.run(tasks())
    service().stop()


if __name__ == "__main__":
    main()
