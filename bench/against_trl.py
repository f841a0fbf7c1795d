"""SFT, PPO, GRPO and RLOO against TRL: CPU seconds of one thread a process, the sides in turn."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from duel import SIDES, Rounds, duel
from figures import Figure, median
from peers import Peers

ROUNDS = 5
SAME_LOSS = 1e-3
SFT_TARGET, PPO_TARGET, GROUP_TARGET = "≥ 1.6", "≥ 1.5", "≥ 1.5"
ROWS_AT_ONCE = (16, 32, 64)
"""Rows of TRL's micro-batches, of which the fastest counts."""
PYTHON = Path(sys.executable)
PACKINGS = {"TRL as it comes": ("1024", "8"), **{f"TRL, rows of {n}": (str(n), "1") for n in (256, 512, 1024)}}


def make_inputs(folder: Path) -> Path:
    """The model and its tokenizer; the folder."""
    import torch

    sys.path.insert(0, str(SIDES))
    import shapes

    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    shapes.write_model(folder)
    shapes.write_tokenizer(folder)
    return folder


def sft(work: Path, peers: Peers) -> list[Figure]:
    """Packing as TRL does it by default, and the fastest of other settings of it; padding for comparison."""
    if peers.python is None:
        return [Figure("SFT step against TRL's packing", None, "×", SFT_TARGET, peers.reason)]
    model = str(make_inputs(work / "model"))
    theirs = {name: (peers.python, "sft_trl.py", [model, *shape]) for name, shape in PACKINGS.items()}
    theirs["TRL, padded"] = (peers.python, "sft_trl.py", [model, "0", "64"])
    facts, rounds = duel({"hpcrl": (PYTHON, "sft_hpcrl.py", [model]), **theirs}, ROUNDS, work)
    check_losses(facts, rounds)
    seconds = cpu_seconds(rounds)
    tuned = min((name for name in PACKINGS if name != "TRL as it comes"), key=lambda name: median(seconds[name]))
    return [
        ratio("SFT step against TRL's packing as it comes (8 rows of 1,024)", seconds, "TRL as it comes", SFT_TARGET),
        ratio(f"SFT step against TRL's packing tuned ({tuned[5:]}, one a micro-batch)", seconds, tuned, SFT_TARGET),
        ratio("SFT step against TRL without packing", seconds, "TRL, padded", ""),
    ]


def ppo(work: Path, peers: Peers) -> list[Figure]:
    if peers.python is None:
        return [Figure("PPO step of four models against TRL's", None, "×", PPO_TARGET, peers.reason)]
    model = str(make_inputs(work / "model"))
    sides = {"hpcrl": (PYTHON, "ppo_hpcrl.py", [model]), "TRL": (peers.python, "ppo_trl.py", [model])}
    _, rounds = duel(sides, ROUNDS, work)
    return [ratio("PPO step of four models against TRL's", cpu_seconds(rounds), "TRL", PPO_TARGET)]


def groups(work: Path, peers: Peers) -> list[Figure]:
    """GRPO and RLOO, each against TRL in the micro-batch that suits it best."""
    if peers.python is None:
        return [Figure("GRPO step against TRL's", None, "×", GROUP_TARGET, peers.reason)]
    model, found = str(make_inputs(work / "model")), []
    for method in ("grpo", "rloo"):
        theirs = {f"rows of {n}": (peers.python, "group_trl.py", [model, method, str(n)]) for n in ROWS_AT_ONCE}
        _, rounds = duel({"hpcrl": (PYTHON, "group_hpcrl.py", [model, method]), **theirs}, ROUNDS, work)
        seconds = cpu_seconds(rounds)
        tuned = min(theirs, key=lambda name: median(seconds[name]))
        found.append(ratio(f"{method.upper()} step against TRL's ({tuned} at once)", seconds, tuned, GROUP_TARGET))
    return found


def check_losses(facts: Mapping[str, dict[str, Any]], rounds: Rounds) -> None:
    """All sides train the same model on the same texts: their losses say that they compute the same thing."""
    expected = facts["hpcrl"]["loss"]
    for name, found in facts.items():
        if abs(found["loss"] - expected) > SAME_LOSS:
            raise AssertionError(f"{name} begins with loss {found['loss']}, hpcrl with {expected}")


def cpu_seconds(rounds: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[float]]:
    return {name: [taken["cpu_s"] for taken in found] for name, found in rounds.items()}


def ratio(what: str, seconds: Mapping[str, Sequence[float]], peer: str, target: str) -> Figure:
    detail = ", ".join(
        f"{name} {median(seconds[side]):.2f} s ({min(seconds[side]):.2f} … {max(seconds[side]):.2f})"
        for name, side in (("hpcrl", "hpcrl"), ("TRL", peer))
    )
    return Figure(what, median(seconds[peer]) / median(seconds["hpcrl"]), "×", target, detail)
