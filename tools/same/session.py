"""From the command line to the exit code: checks BASE out, runs the cases on both trees, reports what differs."""

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

from same.cases import CASES, SFT_MODEL, Case, Material, chosen, shared_settings
from same.comparison import Difference, Findings, compare_folders, compare_killed, compare_undisturbed
from same.processes import NotInTimeError, end_marked
from same.runs import RunFailedError, execute, run_killed, run_undisturbed
from same.trees import HERE, Tree, TreeError, check, describe, resolve, worktree

AT_A_TIME = 2
MOST_SHOWN = 8
"""Kinds of differences printed for a case."""
LOOK_S = 0.1
EQUAL, DIFFERENT, NOT_COMPARED, INTERRUPTED = 0, 1, 2, 130
EXPLANATION = """\
make same BASE=<commit> runs a worktree of BASE and this tree on this machine and prints what differs in their
metrics, exports, checkpoints, spills and journals, down to the byte. It takes a few minutes.

  make same BASE=HEAD~3                    all cases
  make same BASE=main CASES=toy,ppo-dp2    some of them
  make same BASE=main KEEP=1               keep the run folders even if nothing differs

The cases:"""

P = ParamSpec("P")
Result = TypeVar("Result")


def main(words: Sequence[str]) -> int:
    """0 if nothing differs, 1 if something does, 2 if the trees could not be compared."""
    parser = argparse.ArgumentParser(prog="same", description="Run BASE and this tree, and print what differs.")
    parser.add_argument("base", nargs="?", default="", help="the commit to compare with")
    parser.add_argument("--cases", default="", help="names with commas between; all by default")
    parser.add_argument("--keep", action="store_true", help="leave the run folders where they are")
    given = parser.parse_args(words)
    if not given.base:
        print("\n".join([EXPLANATION, *(f"  {case.name}" for case in CASES)]))
        return NOT_COMPARED
    try:
        cases = chosen([name for name in given.cases.split(",") if name])
        commit = resolve(given.base)
    except (ValueError, TreeError) as error:
        print(f"same: {error}")
        return NOT_COMPARED
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return _in_folder(commit, cases, given.keep)


def _in_folder(commit: str, cases: Sequence[Case], keep: bool) -> int:
    """Compare in a new folder, which is kept only on request or if something differs."""
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
        return NOT_COMPARED
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if keep:
            print(f"the runs are in {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)


def compare(base: Tree, here: Tree, cases: Sequence[Case], work: Path) -> int:
    """Run the cases on both trees and print what differs. Raises TreeError and RunFailedError."""
    for tree in (base, here):
        check(tree, work)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        tasks = Tasks(pool)
        try:
            data = [tasks.start(make_data, tree, work) for tree in (base, here)]
            equal = _report("data", compare_folders(*(made.result() for made in data)))
            needed = any(case.needs_sft_model for case in cases)
            sft_model = tasks.start(train_sft_model, base, work) if needed else None
            runs = Runs(base.root, data[0].result(), sft_model, work)
            pairs = [[tasks.start(runs.outcome, case, tree) for tree in (base, here)] for case in cases]
            for case, pair in zip(cases, pairs, strict=True):
                equal &= _report(case.name, findings(case, *(outcome.result() for outcome in pair)))
        except BaseException:
            tasks.stop(work)
            raise
    return EQUAL if equal else DIFFERENT


@dataclass(frozen=True)
class Tasks:
    """Everything that runs on the pool, so that it can be stopped."""

    pool: ThreadPoolExecutor
    futures: list[Future[Any]] = field(default_factory=list)

    def start(self, action: Callable[P, Result], *words: P.args, **named: P.kwargs) -> Future[Result]:
        future = self.pool.submit(action, *words, **named)
        self.futures.append(future)
        return future

    def stop(self, work: Path) -> None:
        """Start nothing more, and kill all processes until every thread has finished. Ctrl-C is ignored from now on."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.pool.shutdown(wait=False, cancel_futures=True)
        while not all(future.done() for future in self.futures):
            end_marked(work)
            time.sleep(LOOK_S)


def make_data(tree: Tree, work: Path) -> Path:
    """The demo's rows, tokenizer and random model, made by this tree."""
    folder = work / "data" / tree.side
    with _timed("data", tree.side):
        execute(
            tree, tree.python("examples/addition/make_data.py", "--out", str(folder)), work / "make_data" / tree.side
        )
    return folder


def train_sft_model(base: Tree, work: Path) -> Path:
    """The model that PPO starts from, on both sides."""
    data = work / "data" / base.side
    words = [f"--{word}" for word in shared_settings(SFT_MODEL, Material(data, data / "model", data / "model"))]
    with _timed("sft model", base.side):
        run = run_undisturbed(base, base.root / SFT_MODEL.example, words, work / "sft-model")
    return max(run.glob("export/actor/step-*"))


@dataclass(frozen=True)
class Outcome:
    """A run directory, or what went wrong."""

    run: Path
    trouble: str = ""


@dataclass(frozen=True)
class Runs:
    """What all runs share: BASE's examples, data and SFT model."""

    examples: Path
    data: Path
    sft_model: Future[Path] | None
    work: Path

    def outcome(self, case: Case, tree: Tree) -> Outcome:
        """Run a case on a tree."""
        model = self.data / "model"
        sft_model = self.sft_model.result() if self.sft_model and case.needs_sft_model else model
        words = case.words(Material(self.data, model, sft_model))
        folder = self.work / case.name / tree.side
        run = run_killed if case.killed else run_undisturbed
        try:
            with _timed(case.name, tree.side):
                return Outcome(run(tree, self.examples / case.recipe.example, words, folder))
        except (RunFailedError, NotInTimeError) as error:
            return Outcome(folder, str(error))


def findings(case: Case, base: Outcome, here: Outcome) -> Findings:
    """What differs between the two runs of a case. A run that failed is a difference, even if both did."""
    if base.trouble or here.trouble:
        ends = [outcome.trouble or "done" for outcome in (base, here)]
        return Findings(differences=[Difference("the run", "ended", "", *ends)])
    if case.killed:
        return compare_killed(base.run, here.run)
    return compare_undisturbed(base.run, here.run, case.racing)


def _report(name: str, found: Findings) -> bool:
    """Print a case's result; returns whether both sides are equal."""
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
