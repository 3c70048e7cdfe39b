"""The table of docs/SECURITY.md, made from the logs of the test runs.

A test whose name begins with `case_NN_` proves case NN of the battery. `cargo test` says what became of it; the log of
each run is named after where it ran: units.log, embedded.log, docker.log. It knows nothing of the tests
themselves: groups may be added without touching it.

    table.py LOGS            writes the table into docs/SECURITY.md
    table.py LOGS --check    fails if a case failed or is missing, or if the table there says something else

What a machine could not try is told below the table, and is not compared: machines differ.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "SECURITY.md"
BEGIN, END = "<!-- battery: begin -->", "<!-- battery: end -->"
# Groups whose tests need no container run once, whatever the backend of that run was.
HOST_ONLY = ("ingest::", "embedded_s3::", "security::d_urls::", "security::e_api::")
BACKENDS = ("host", "embedded", "docker")
TEST = re.compile(
    r"^test (?P<path>[\w:]*\bcase_(?P<case>\d\d)_(?P<name>\w+)) \.\.\. (?P<result>\w+)", re.M
)
NOTE = re.compile(r"NOT TESTABLE HERE case (?P<case>\d\d) (?P<backend>\w+): (?P<what>.*)")


def read_logs(folder: Path) -> tuple[dict[tuple[int, str], dict[str, str]], set[tuple[int, str]]]:
    """Results by case and claim, then by where; and what could not be tried."""
    results: dict[tuple[int, str], dict[str, str]] = {}
    notes: set[tuple[int, str]] = set()
    for log in sorted(folder.glob("*.log")):
        text = log.read_text(errors="replace")
        for found in NOTE.finditer(text):
            notes.add((int(found["case"]), found["what"].strip()))
        for found in TEST.finditer(text):
            where = "host" if found["path"].startswith(HOST_ONLY) else log.stem
            claim = found["name"].replace("_", " ")
            results.setdefault((int(found["case"]), claim), {})[where] = found["result"]
    return results, notes


def in_words(where: dict[str, str]) -> str:
    words = {"ok": "holds", "FAILED": "**broken**"}
    return ", ".join(f"{b}: {words.get(where[b], where[b])}" for b in BACKENDS if b in where)


def table(results: dict[tuple[int, str], dict[str, str]], notes: set[tuple[int, str]]) -> str:
    lines = ["| case | claim | result |", "|---|---|---|"]
    for (case, claim), where in sorted(results.items()):
        lines.append(f"| {case} | {claim} | {in_words(where)} |")
    if notes:
        lines += ["", "Not to be seen on the machine of this run:", ""]
        lines += [f"- case {case}: {what}" for case, what in sorted(notes)]
    return "\n".join(lines)


def rows_in(text: str, where_run: set[str]) -> tuple[set[str], set[int]]:
    """The rows of a table, with the results of those places only that this run can speak of.

    A row that has none of them is left out; its case is among the second, if no other row of that case is left.
    """
    rows, here, elsewhere = set(), set(), set()
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) != 3 or not cells[0].isdigit():
            continue
        results = [r for r in cells[2].split(", ") if r.split(":")[0] in where_run]
        if results:
            here.add(int(cells[0]))
            rows.add(f"{cells[0]} | {cells[1]} | {', '.join(results)}")
        else:
            elsewhere.add(int(cells[0]))
    return rows, elsewhere - here


def missing_cases(results: dict[tuple[int, str], dict[str, str]]) -> set[int]:
    """Cases up to the last one there is that nobody claims to prove."""
    cases = {case for case, _ in results}
    return set(range(1, max(cases, default=43) + 1)) - cases


def main() -> int:
    """Write or check."""
    folder, check = Path(sys.argv[1]), "--check" in sys.argv[2:]
    results, notes = read_logs(folder)
    missing, problems = missing_cases(results), []
    for (case, claim), where in sorted(results.items()):
        problems += [f"case {case}, {b}: {claim}" for b, word in where.items() if word != "ok"]
    document = DOCUMENT.read_text()
    head, _, rest = document.partition(BEGIN)
    old, _, tail = rest.partition(END)
    new = f"\n{table(results, notes)}\n"
    if not check:
        DOCUMENT.write_text(f"{head}{BEGIN}{new}{END}{tail}")
    else:
        where_run = {place for where in results.values() for place in where}
        (said, elsewhere), (seen, _) = rows_in(old, where_run), rows_in(new, where_run)
        # Only a place that was not tried in this run, an engine that is not there, can speak of them.
        missing -= elsewhere
        problems += [f"docs/SECURITY.md says, but the run does not: {row}" for row in said - seen]
        problems += [f"the run says, but docs/SECURITY.md does not: {row}" for row in seen - said]
        if said != seen:
            problems.append("./ctl.sh battery writes the table anew")
    problems += [f"case {case} has no test" for case in missing]
    for problem in sorted(problems):
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
