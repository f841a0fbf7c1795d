"""Calls of a script's worker groups against those of verl's on Ray, wall time: the sides in turn."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from duel import duel
from figures import Figure, median, spread
from peers import Peers

ROUNDS = 5
PYTHON = Path(sys.executable)
OURS, THEIRS = "hpcrl", "verl"
WAYS = {"torch.save": "rows", "numpy": "rows_numpy"}
"""How verl serialises a batch, as it comes and as it may be told to."""


def groups(work: Path, peers: Peers) -> list[Figure]:
    if peers.python is None:
        return figures_of({}, peers.reason)
    sides = {
        OURS: (PYTHON, "verl_groups_hpcrl.py", [str(work / "run")]),
        THEIRS: (peers.python, "verl_groups_ray.py", []),
    }
    _, rounds = duel(sides, ROUNDS, work)
    return figures_of(rounds)


def figures_of(rounds: Mapping[str, Sequence[Mapping[str, Any]]], reason: str = "") -> list[Figure]:
    """Medians of the rounds' medians, which are in seconds; without rounds, why there are none."""
    targets = {
        "no_rows": ("a call on 4 workers, no rows ÷ verl's worker group on Ray", "≤ 0.3"),
        "rows_there": ("256 rows × 2,048 tokens, 4 keys in, 1 out ÷ verl's: rows where they are read", "≤ 0.15"),
        "rows_elsewhere": ("the same, rows elsewhere", "≤ 0.6"),
    }
    if not rounds:
        return [Figure(what, None, "×", target, reason) for what, target in targets.values()]
    ms = {side: {what: [1e3 * taken[what] for taken in of] for what in of[0]} for side, of in rounds.items()}
    by_way = {name: median(ms[THEIRS][what]) for name, what in WAYS.items()}
    fastest = min(by_way, key=by_way.__getitem__)
    in_words = " and ".join(f"{taken:.1f} by {name}" for name, taken in by_way.items())
    found = []
    for what, (title, target) in targets.items():
        ours, has_rows = median(ms[OURS][what]), what != "no_rows"
        theirs = by_way[fastest] if has_rows else median(ms[THEIRS]["no_rows"])
        said = in_words if has_rows else f"{theirs:.2f}"
        detail = f"{ours:.2f} ms ({spread(ms[OURS][what], 'ms')}); verl {said} ms"
        found.append(Figure(title, ours / theirs, "×", target, detail))
    return found
