"""What it costs to look at a run: `hpcrl inspect RUN report` against its plots alone, and `hpcrl status` of a long run.

The runs are made as the tests make theirs: by what the master's own writers write.
"""

import shutil
import sys
from pathlib import Path

from children import cost_of
from figures import Figure, median

STEPS, LONG = 1_000, 10_000
ROUNDS = 5
SAMPLES = 32
HPCRL = (sys.executable, "-m", "hpcrl")


def views(work: Path) -> list[Figure]:
    return [*_report(work / "report"), *_status(work / "status")]


def _report(root: Path) -> list[Figure]:
    """A process of each, so that both start, import matplotlib and read the rows."""
    shutil.rmtree(root, ignore_errors=True)
    _make(root, STEPS)
    plots, whole = [], []
    for _ in range(ROUNDS):
        plots.append(cost_of([sys.executable, __file__, "draw", str(root)]).cpu_s)
        whole.append(cost_of([*HPCRL, "inspect", str(root), "report", "--out", str(root / "page.html")]))
    base, ours = median(plots), median([cost.cpu_s for cost in whole])
    what = f"`hpcrl inspect RUN report` of {STEPS:,} steps over its plots alone"
    size = (root / "page.html").stat().st_size
    shutil.rmtree(root)
    return [
        Figure(what, ours / base, "×", "≤ 2", f"{ours:.2f} and {base:.2f} CPU s of a process"),
        Figure("its page", size / 1e6, "MB", "≤ 5"),
    ]


def _status(root: Path) -> list[Figure]:
    shutil.rmtree(root, ignore_errors=True)
    _make(root, LONG)
    costs = [cost_of([*HPCRL, "status", str(root)]) for _ in range(ROUNDS)]
    shutil.rmtree(root)
    what = f"memory of `hpcrl status` of a run of {LONG:,} steps"
    detail = f"{median([cost.cpu_s for cost in costs]):.2f} CPU s"
    return [Figure(what, max(cost.peak for cost in costs) / 2**20, "MiB", "≤ 60", detail)]


def _make(root: Path, steps: int) -> None:
    cost_of([sys.executable, __file__, "make", str(root), str(steps)])


def make(root: Path, steps: int) -> None:
    """A run of two attempts that has kept samples of every hundredth step."""
    from support.kept_run import response, write_lines, write_step
    from support.made_run import MadeRun

    from hpcrl.durable.journal import Adopted, encode_line

    made = MadeRun(root, steps)
    made.begin(steps=steps)
    made.steps(0, steps // 2)
    made.begin(steps=steps)
    made.steps(steps // 2 + 1, steps)
    made.verdict("done", 0, f"step {steps} was the last")
    made.run.adopted(0).write_bytes(encode_line(Adopted((), {})))
    rows = {
        f"{number}@0": response(
            f"What is {number} + 1?", "It is so many. " * 40, reward=float(number), advantages=[0.5, -0.5] * 300
        )
        for number in range(SAMPLES)
    }
    write_lines(made.run, 0, [write_step(made.run, 0, step, rows) for step in range(100, steps + 1, 100)])


def draw(root: Path) -> None:
    from hpcrl.durable.rundir import RunDirectory
    from hpcrl.inspect.plots import panels_of_a_page
    from hpcrl.inspect.reader import RunReader

    panels_of_a_page(RunReader(RunDirectory.look(root)))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        draw(Path(sys.argv[2]))
