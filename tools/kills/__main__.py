"""`make kill`: strike runs at every point, compare what they end with, write docs/durability.md's tables.

What was found is kept after each point, so that the next call continues where this one ended.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from kills import local, page, slurm
from kills.outcomes import Outcome, add, read, rewrite
from kills.points import LOCAL, Point, points
from kills.runs import Left

ROOT = Path(__file__).parents[2]
FAILED = ROOT / "runs" / "kills"
"""What runs that went wrong have left, by the name of the point."""


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make kill", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no point after so many minutes")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="such as 'local/agent/*'; names: --list")
    parser.add_argument("--again", action="store_true", help="strike points again whose outcome is known")
    parser.add_argument("--list", action="store_true", help="print the points that would be struck")
    given = parser.parse_args(words)
    asked = [point for point in points() if point.matches(given.only)]
    if given.again and not given.list:
        rewrite({point: outcome for point, outcome in read().items() if point not in asked})
    known = {} if given.again else read()
    todo = [point for point in asked if point not in known or known[point].wrong]
    if given.list:
        print("\n".join(point.name for point in todo))
        return 0
    strike_all(todo, time.monotonic() + given.minutes * 60)
    rewrite(known := {point: outcome for point, outcome in read().items() if point in points()})
    page.write(known)
    return int(any(outcome.wrong for outcome in known.values()))


def strike_all(todo: list[Point], deadline: float) -> None:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hpcrl-kill-") as name, slurm.Cluster(Path(name)) as cluster:
        references = local.References(Path(name))
        for number, point in enumerate(todo):
            if time.monotonic() > deadline:
                print(f"{len(todo) - number} points are left: make kill")
                break
            outcome = strike_one(Path(name) / f"{number:03d}", point, references.of(point), cluster)
            add(outcome)
            left = (time.monotonic() - begun) / (number + 1) * (len(todo) - number - 1)
            said = outcome.wrong.partition("\n")[0] or outcome.how
            print(f"{number + 1}/{len(todo)} {point.name}: {said} ({outcome.seconds:.0f} s)", end="; ")
            print(f"{left / 60:.0f} min to go", flush=True)


def strike_one(folder: Path, point: Point, reference: Left, cluster: slurm.Cluster) -> Outcome:
    begun, how, wrong = time.monotonic(), "", ""
    try:
        how = (local if point.topology == LOCAL else cluster).strike(folder, point, reference)
    except Exception as error:
        wrong = str(error).partition("\n")[0] or repr(error)
        kept = FAILED / point.name.replace("/", "-").replace(" ", "_")
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(folder, kept, symlinks=True)
        (kept / "wrong.txt").write_text(str(error))
    shutil.rmtree(folder, ignore_errors=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    return Outcome(**asdict(point), how=how, wrong=wrong, seconds=time.monotonic() - begun, commit=commit.strip())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
