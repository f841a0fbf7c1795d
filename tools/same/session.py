"""From the command line to the exit code: a worktree of BASE, the runs of both trees two at a time, and the verdict."""

import argparse
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from same.cases import CASES, TEACHING, Case, Material, chosen, in_words
from same.comparison import Difference, Findings, compare_folders, compare_killed, compare_left_alone
from same.processes import NotInTimeError, end_marked
from same.runs import RunFailedError, execute, killed, left_alone
from same.trees import HERE, Tree, TreeError, check, describe, resolve, worktree

AT_A_TIME = 2
MOST_SHOWN = 8
"""Kinds of differences that are printed of a case."""
LOOK_S = 0.1
EQUAL, DIFFERENT, NOTHING_RUN, INTERRUPTED = 0, 1, 2, 130
EXPLANATION = """\
make same BASE=<commit> runs BASE and this tree, as it is, on this machine, and prints what differs:
metrics, exports, checkpoints, spills and journals, to the byte. It takes some minutes.

  make same BASE=HEAD~3                    all cases
  make same BASE=main CASES=toy,ppo-dp2    some of them
  make same BASE=main KEEP=1               the run folders stay, as they do where something differs

The cases:"""

P = ParamSpec("P")
Result = TypeVar("Result")


def main(words: Sequence[str]) -> int:
    """0 if nothing differs, 1 if something does, 2 if nothing could be run."""
    parser = argparse.ArgumentParser(prog="same", description="Run BASE and this tree, and print what differs.")
    parser.add_argument("base", nargs="?", default="", help="the commit to compare with")
    parser.add_argument("--cases", default="", help="names with commas between; all by default")
    parser.add_argument("--keep", action="store_true", help="leave the run folders where they are")
    given = parser.parse_args(words)
    if not given.base:
        print("\n".join([EXPLANATION, *(f"  {case.name}" for case in CASES)]))
        return NOTHING_RUN
    try:
        cases = chosen([name for name in given.cases.split(",") if name])
        commit = resolve(given.base)
    except (ValueError, TreeError) as error:
        print(f"same: {error}")
        return NOTHING_RUN
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return _in_folder(commit, cases, given.keep)


def _in_folder(commit: str, cases: Sequence[Case], keep: bool) -> int:
    """Compare in a new folder, which stays only where it is of use."""
    begun = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix="hpcrl-same-"))
    try:
        print(f"BASE is {describe(commit)}", flush=True)
        with worktree(commit, work / "base") as base:
            code = compare(base, Tree("here", HERE), cases, work)
        keep = keep or code == DIFFERENT
        verdict = "nothing differs" if code == EQUAL else "something differs"
        print(f"{verdict}; {len(cases)} cases in {time.monotonic() - begun:.0f} s")
        return code
    except (TreeError, RunFailedError) as error:
        print(f"same: {error}")
        return NOTHING_RUN
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if keep:
            print(f"the runs are in {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)


def compare(base: Tree, here: Tree, cases: Sequence[Case], work: Path) -> int:
    """Run the cases on both trees, two runs at a time, and print what differs. Raises TreeError, RunFailedError."""
    for tree in (base, here):
        check(tree, work)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        under_way = UnderWay(pool)
        try:
            rows = [under_way.begin(make_rows, tree, work) for tree in (base, here)]
            equal = _report("data", compare_folders(*(made.result() for made in rows)))
            taught = under_way.begin(teach, base, work) if any(case.needs_taught for case in cases) else None
            runs = Runs(base.root, rows[0].result(), taught, work)
            pairs = [[under_way.begin(runs.outcome, case, tree) for tree in (base, here)] for case in cases]
            for case, pair in zip(cases, pairs, strict=True):
                equal &= _report(case.name, findings(case, *(outcome.result() for outcome in pair)))
        except BaseException:
            under_way.end(work)
            raise
    return EQUAL if equal else DIFFERENT


@dataclass(frozen=True)
class UnderWay:
    """What was begun on other threads, so that all of it can be ended."""

    pool: ThreadPoolExecutor
    begun: list[Future[Any]] = field(default_factory=list)

    def begin(self, action: Callable[P, Result], *words: P.args, **named: P.kwargs) -> Future[Result]:
        future = self.pool.submit(action, *words, **named)
        self.begun.append(future)
        return future

    def end(self, work: Path) -> None:
        """Begin nothing more, and kill whatever the threads start until they give up. Not to be interrupted."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.pool.shutdown(wait=False, cancel_futures=True)
        while not all(future.done() for future in self.begun):
            end_marked(work)
            time.sleep(LOOK_S)


def make_rows(tree: Tree, work: Path) -> Path:
    """The demo's rows, tokenizer and random model, as this tree makes them."""
    folder = work / "data" / tree.side
    with _timed("data", tree.side):
        execute(tree, tree.python("examples/addition/make_data.py", "--out", str(folder)), work / "made" / tree.side)
    return folder


def teach(base: Tree, work: Path) -> Path:
    """The model that PPO begins with, on both sides: BASE's SFT makes it."""
    rows = work / "data" / base.side
    words = [f"--{word}" for word in in_words(TEACHING, Material(rows, rows / "model", rows / "model"))]
    with _timed("teaching", base.side):
        run = left_alone(base, base.root / TEACHING.example, words, work / "teaching")
    return max(run.glob("export/actor/step-*"))


@dataclass(frozen=True)
class Outcome:
    """Where a run is, and what went wrong with it."""

    run: Path
    trouble: str = ""


@dataclass(frozen=True)
class Runs:
    """What all runs have in common: BASE's examples, and what BASE has made for them to read."""

    examples: Path
    rows: Path
    taught: Future[Path] | None
    work: Path

    def outcome(self, case: Case, tree: Tree) -> Outcome:
        """Run a case on a tree."""
        taught = self.taught.result() if self.taught and case.needs_taught else self.rows / "model"
        words = case.words(Material(self.rows, self.rows / "model", taught))
        folder = self.work / case.name / tree.side
        execute_case = killed if case.killed else left_alone
        try:
            with _timed(case.name, tree.side):
                return Outcome(execute_case(tree, self.examples / case.recipe.example, words, folder))
        except (RunFailedError, NotInTimeError) as error:
            return Outcome(folder, str(error))


def findings(case: Case, base: Outcome, here: Outcome) -> Findings:
    """What differs between a case's two runs; that one did not come to its end counts as a difference too."""
    if base.trouble or here.trouble:
        ends = [outcome.trouble or "as it should" for outcome in (base, here)]
        return Findings(differences=[Difference("the run", "its end", "", *ends)])
    if case.killed:
        return compare_killed(base.run, here.run)
    return compare_left_alone(base.run, here.run, case.racing)


def _report(name: str, found: Findings) -> bool:
    """Print what was found; whether all is equal."""
    if not found.differences:
        compared = ", ".join(f"{count} {sort}" for sort, count in found.compared.items())
        print(f"{name}: same ({compared})", flush=True)
        return True
    print(f"{name}: DIFFERS")
    for line in found.lines(MOST_SHOWN):
        print(f"  {line}", flush=True)
    return False


@contextmanager
def _timed(name: str, side: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    print(f"  {name:14} {side:5} {time.monotonic() - begun:5.1f} s", flush=True)
