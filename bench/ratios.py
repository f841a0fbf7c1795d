"""`make ratios BASE=<commit>`: what this tree costs by what BASE costs, the two in turn on this machine.

A call's round trip, the CPU of a PPO step, the client's CPU for `hpcrl submit --dry-run`, and how long a PPO run stands
still when a worker of it is killed. Each tree runs its own sides with its own hpcrl; the interpreter is the same.
"""

import argparse
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from against_trl import make_inputs
from duel import Rounds, duel
from figures import median
from recovery import kill_and_wait, wait_for_step
from same.trees import HERE, Tree, resolve, worktree

from hpcrl.durable.rundir import RunDirectory

CALL_ROUNDS, STEP_ROUNDS, SUBMITS, KILLS = 21, 5, 15, 3
TURNS = 4
"""How often each tree has a run whose workers are killed."""
Trees = Mapping[str, Tree]
Costs = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", metavar="BASE")
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help=f"{', '.join(MEASURES)}; all by default")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hpcrl-ratios-") as folder:
        work = Path(folder)
        with worktree(resolve(arguments.base), work / "base") as base:
            for name in arguments.measures or MEASURES:
                what, unit, measure = MEASURES[name]
                costs = measure({"before": base, "after": Tree("head", HERE)}, work)
                before, after = costs["before"], costs["after"]
                print(
                    f"{what}: {median(after) / median(before):.3f} (least ÷ least {min(after) / min(before):.3f}); "
                    f"before {median(before):.4g} {unit}, after {median(after):.4g} {unit}, {len(after)} each",
                    flush=True,
                )


def call(trees: Trees, work: Path) -> Costs:
    return _of(_duel(trees, "call_hpcrl.py", [], CALL_ROUNDS, work), "us")


def step(trees: Trees, work: Path) -> Costs:
    return _of(_duel(trees, "ppo_hpcrl.py", [str(make_inputs(work / "model"))], STEP_ROUNDS, work), "cpu_s")


def submit(trees: Trees, work: Path) -> Costs:
    """Of the demo's PPO, whose files are there."""
    costs: Costs = {name: [] for name in trees}
    words = _demo_words(trees["after"], work)
    for _ in range(SUBMITS):
        for name, tree in trees.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            _hpcrl(tree, work, "submit", "examples/addition/ppo.yaml", "--dry-run", "--cluster", "local", *words)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            costs[name].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return costs


def recovery(trees: Trees, work: Path) -> Costs:
    """The same kills, after the same waits, for both."""
    costs: Costs = {name: [] for name in trees}
    words = [*_demo_words(trees["after"], work), "--control.steps", "1000"]
    for turn in range(TURNS):
        for name, tree in list(trees.items())[:: 1 if turn % 2 else -1]:
            dice = random.Random(turn)
            with _running(tree, work, RunDirectory(work / f"run-{turn}-{name}"), words) as run:
                costs[name] += [kill_and_wait(run, dice)["total"] for _ in range(KILLS)]
    return costs


@contextmanager
def _running(tree: Tree, work: Path, run: RunDirectory, words: list[str]) -> Iterator[RunDirectory]:
    command = ["submit", "examples/addition/ppo.yaml", "--cluster", "local", "--run-dir", str(run.root), *words]
    with run.root.with_suffix(".log").open("w") as log:
        submitted = subprocess.Popen(
            tree.hpcrl(*command), env=tree.environment(work), cwd=tree.root, stdout=log, stderr=log
        )
        try:
            wait_for_step(run, since=0.0, least=5)
            yield run
        finally:
            _hpcrl(tree, work, "stop", str(run.root), "--now")
            submitted.wait(60)


def _demo_words(tree: Tree, work: Path) -> list[str]:
    folder = work / "addition"
    if not folder.exists():
        _call(tree, work, tree.python("examples/addition/make_data.py", "--out", str(folder)))
    roles = [word for role in ("actor", "critic", "reference") for word in (f"--{role}.path", str(folder / "model"))]
    return ["--data.train", str(folder / "train.jsonl"), "--data.evaluate", str(folder / "test.jsonl"), *roles]


def _hpcrl(tree: Tree, work: Path, *words: str) -> None:
    _call(tree, work, tree.hpcrl(*words))


def _call(tree: Tree, work: Path, command: list[str]) -> None:
    subprocess.run(command, check=True, cwd=tree.root, env=tree.environment(work), stdout=subprocess.DEVNULL)


def _duel(trees: Trees, script: str, words: list[str], rounds: int, work: Path) -> Rounds:
    roots = {name: tree.root for name, tree in trees.items()}
    sides = {
        name: (Path(sys.executable), str(root / "bench" / "sides" / script), words) for name, root in roots.items()
    }
    return duel(sides, rounds, work / "logs", roots)[1]


def _of(rounds: Rounds, what: str) -> Costs:
    return {name: [float(taken[what]) for taken in found] for name, found in rounds.items()}


MEASURES: Mapping[str, tuple[str, str, Callable[[Trees, Path], Costs]]] = {
    "call": ("a call's round trip", "µs", call),
    "step": ("a PPO step of four models", "CPU s", step),
    "submit": ("hpcrl submit --dry-run", "CPU s", submit),
    "recovery": ("from SIGKILL of a worker to the next train step", "s", recovery),
}


if __name__ == "__main__":
    main()
