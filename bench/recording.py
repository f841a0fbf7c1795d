"""What it costs that workers measure what their calls do, and that samples are archived: both, in steps of PPO."""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from against_trl import make_inputs
from duel import Side
from figures import Figure, median

ROUNDS = 3
Round = dict[str, Any]


def recording(work: Path) -> list[Figure]:
    """Each side one process with one thread; which of them begins a round changes from round to round."""
    model, run = str(make_inputs(work / "model")), work / "run"
    Path(model, "tokenizer_config.json").write_text(json.dumps({"eos_token": "<pad>"}))  # a master has to know one
    shutil.rmtree(run, ignore_errors=True)
    with (
        Side(Path(sys.executable), "ppo_hpcrl.py", [model, str(run)], work / "recording.log") as recorded,
        Side(Path(sys.executable), "ppo_hpcrl.py", [model, "unwatched"], work / "unwatched.log") as unwatched,
    ):
        pairs = [_pair(recorded, unwatched, number % 2 == 1) for number in range(ROUNDS)]
    shutil.rmtree(run)
    return [*_whole_steps(pairs), *_own_time([found for found, _ in pairs])]


def _pair(recorded: Side, unwatched: Side, turned: bool) -> tuple[Round, Round]:
    if turned:
        without = unwatched.round()
        return recorded.round(), without
    return recorded.round(), unwatched.round()


def _whole_steps(pairs: Sequence[tuple[Round, Round]]) -> list[Figure]:
    """What is seen of it in whole steps, where it drowns in what the same step takes more or less from time to time."""
    cpu, wall = ([one[what] / other[what] for one, other in pairs] for what in ("cpu_s", "wall_s"))
    alone = [other["cpu_s"] for _, other in pairs]
    spread = 100 * (max(alone) - min(alone)) / median(alone)
    detail = (
        f"{len(pairs)} pairs in turn: {min(cpu):.4f} … {max(cpu):.4f}; in wall time {median(wall):.4f}, "
        f"{min(wall):.4f} … {max(wall):.4f}; steps without differ among themselves by {spread:.1f} %"
    )
    what = "whole steps with both over whole steps without, CPU seconds of a process"
    return [Figure(what, median(cpu), "×", "", detail)]


def _own_time(rounds: Sequence[Round]) -> list[Figure]:
    own, archive, whole = ([found[what] for found in rounds] for what in ("own_s", "archive_s", "wall_s"))
    ratios = [wall / (wall - meter - kept) for meter, kept, wall in zip(own, archive, whole, strict=True)]
    rows, size = (int(rounds[0][what]) for what in ("archive_rows", "archive_bytes"))
    return [
        Figure(
            "a PPO step of four models whose calls are measured and whose samples are archived, over one without: "
            "by the time in the code that does it",
            median(ratios),
            "×",
            "≤ 1.01",
            f"{median(ratios):.4f}: of {median(whole):.1f} s {1e3 * median(own):.1f} ms to measure, and as much again "
            f"at most for watching that; {1e3 * median(archive):.1f} ms for the archive, which a run makes beside its "
            "work",
        ),
        Figure(
            f"time of an archive of {rows} of its rows",
            1e3 * median(archive),
            "ms",
            "",
            "its spills read, texts made of its tokens, written, flushed and published",
        ),
        Figure("its size", size / 1e3, "kB", "", f"{size / rows:,.0f} bytes a row, of 48 + 128 tokens"),
    ]
