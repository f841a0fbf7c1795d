"""Emulated members keep a real master busy, and what they and it write of each other does not grow with the run."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from hpcrl.durable.rundir import RunDirectory


def test_a_master_drives_emulated_workers_to_the_end_of_a_run_and_past_a_lost_node(
    bench_file: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    """Its events have one line a rank more with more ranks, and no line is longer with more ranks or samples."""
    scale = bench_file("scale")
    told = {}
    for ranks, size in {2: scale.Size(2, 1, 8), 16: scale.Size(2, 8, 64)}.items():
        figures = {figure.what: figure for figure in scale.scale(tmp_path / str(ranks), size)}
        assert figures["from a node's loss until all are ready"].value > 0.0
        run = RunDirectory.open(tmp_path / str(ranks) / "run")
        verdicts = [run.read_verdict(number) for number in run.numbers()]
        assert [None if it is None else it.state for it in verdicts] == [None, "done"]
        text = run.events(1).read_text()
        # How an attempt begins is told with a few examples of what it found.
        lines = [line for line in text.splitlines() if '"event":"attempt"' not in line]
        told[ranks] = [re.sub(r"[0-9.]+", "0", line) for line in lines]
    few, many = (Counter(line.partition('"event":')[2].partition(",")[0] for line in lines) for lines in told.values())
    more = many - few
    # It may open and close a step more before it hears of the loss: each is told once, however many ranks there are.
    assert max(more.pop('"opened"', 0), more.pop('"closed"', 0)) <= scale.STEPS - scale.LOSES_IN + 1
    assert more == {'"worker"': 14}
    assert max(map(len, told[16])) <= max(map(len, told[2]))
