"""What it costs that workers measure what their calls do: the meter's own time, in steps of PPO."""

import sys
from pathlib import Path

from against_trl import make_inputs
from duel import Side
from figures import Figure, median

ROUNDS = 5


def recording(work: Path) -> list[Figure]:
    """Both of one process, with one thread."""
    model = str(make_inputs(work / "model"))
    with Side(Path(sys.executable), "ppo_hpcrl.py", [model], work / "recording.log") as side:
        rounds = [side.round() for _ in range(ROUNDS)]
    own, whole = ([found[what] for found in rounds] for what in ("own_s", "wall_s"))
    return [
        Figure(
            "a PPO step of four models whose calls are measured, over one whose are not",
            median([taken / (taken - of_meter) for of_meter, taken in zip(own, whole, strict=True)]),
            "×",
            "≤ 1.01",
            f"{1e3 * median(own):.1f} ms of {median(whole):.1f} s, and as much again at most for watching that",
        )
    ]
