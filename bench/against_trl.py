"""SFT, DPO, reward models, PPO, GRPO and RLOO against TRL: CPU seconds of one thread a process, the sides in turn."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from duel import SIDES, duel
from figures import Figure, median
from peers import Peers

ROUNDS = 3
SAME_LOSS = 1e-3
SFT_TARGET, PPO_TARGET, GROUP_TARGET = "≥ 1.6", "≥ 1.5", "≥ 1.5"
DPO_TARGET, REWARD_MODEL_TARGET = "≥ 1.8", "≥ 1.4"
PAIRS_AT_ONCE = (1, 2, 4)
"""Pairs of like length in TRL's micro-batches, of which the fastest counts."""
ROWS_AT_ONCE = (16, 32, 64)
"""Rows of TRL's micro-batches, of which the fastest counts."""
PYTHON = Path(sys.executable)
PACKINGS = {"TRL as it comes": ("1024", "8"), **{f"TRL, rows of {n}": (str(n), "1") for n in (256, 512, 1024)}}


def make_inputs(folder: Path, scores: bool = False) -> Path:
    """The model, which may score texts, and its tokenizer; the folder."""
    import torch

    sys.path.insert(0, str(SIDES))
    import shapes

    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    shapes.write_model(folder, scores)
    shapes.write_tokenizer(folder)
    return folder


def sft(work: Path, peers: Peers) -> list[Figure]:
    """Packing as TRL does it by default, and the fastest of other settings of it; padding for comparison."""
    if peers.python is None:
        return [Figure("SFT step against TRL's packing", None, "×", SFT_TARGET, peers.reason)]
    model = str(make_inputs(work / "model"))
    theirs = {name: (peers.python, "sft_trl.py", [model, *shape]) for name, shape in PACKINGS.items()}
    theirs["TRL, padded"] = (peers.python, "sft_trl.py", [model, "0", "64"])
    rivals = [name for name in PACKINGS if name != "TRL as it comes"]
    facts, rounds = duel({"hpcrl": (PYTHON, "sft_hpcrl.py", [model]), **theirs}, ROUNDS, work, rivals=rivals)
    check_losses(facts)
    seconds = cpu_seconds(rounds)
    tuned = fastest(rivals, seconds)
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
        sides = {"hpcrl": (PYTHON, "group_hpcrl.py", [model, method]), **theirs}
        _, rounds = duel(sides, ROUNDS, work, rivals=list(theirs))
        seconds = cpu_seconds(rounds)
        tuned = fastest(theirs, seconds)
        found.append(ratio(f"{method.upper()} step against TRL's ({tuned} at once)", seconds, tuned, GROUP_TARGET))
    return found


def dpo(work: Path, peers: Peers) -> list[Figure]:
    return of_pairs("dpo", "DPO", DPO_TARGET, work, peers)


def reward_model(work: Path, peers: Peers) -> list[Figure]:
    return of_pairs("reward_model", "reward model's", REWARD_MODEL_TARGET, work, peers)


def of_pairs(method: str, called: str, target: str, work: Path, peers: Peers) -> list[Figure]:
    """As TRL's trainer takes pairs by default, and in the fastest of other settings."""
    what = f"{called} step against TRL's"
    if peers.python is None:
        return [Figure(what, None, "×", target, peers.reason)]
    model = str(make_inputs(work / "model", scores=method == "reward_model"))
    settings = {"TRL as it comes": ("8", "random"), **{f"TRL, {n}": (str(n), "sequential") for n in PAIRS_AT_ONCE}}
    theirs = {name: (peers.python, "pairs_trl.py", [model, method, *setting]) for name, setting in settings.items()}
    sides, rivals = {"hpcrl": (PYTHON, "pairs_hpcrl.py", [model, method]), **theirs}, list(theirs)[1:]
    facts, rounds = duel(sides, ROUNDS, work, rivals=rivals)
    check_losses(facts)
    check_losses({name: taken[0] for name, taken in rounds.items()})
    seconds = cpu_seconds(rounds)
    tuned = fastest(rivals, seconds)
    return [
        ratio(f"{what} as it comes (8 pairs at once, in any order)", seconds, "TRL as it comes", ""),
        ratio(f"{what} tuned ({tuned[5:]} at once, of like length)", seconds, tuned, target),
    ]


def fastest(rivals: Iterable[str], seconds: Mapping[str, Sequence[float]]) -> str:
    """By the first round, after which the others have no more."""
    return min(rivals, key=lambda name: seconds[name][0])


def check_losses(said: Mapping[str, Mapping[str, Any]]) -> None:
    """All sides train the same model on the same texts: their losses say that they compute the same thing."""
    expected = said["hpcrl"]["loss"]
    for name, found in said.items():
        if abs(found["loss"] - expected) > SAME_LOSS:
            raise AssertionError(f"{name} has loss {found['loss']}, hpcrl {expected}")


def cpu_seconds(rounds: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[float]]:
    return {name: [taken["cpu_s"] for taken in found] for name, found in rounds.items()}


def ratio(what: str, seconds: Mapping[str, Sequence[float]], peer: str, target: str) -> Figure:
    detail = ", ".join(
        f"{name} {median(seconds[side]):.2f} s ({min(seconds[side]):.2f} … {max(seconds[side]):.2f})"
        for name, side in (("hpcrl", "hpcrl"), ("TRL", peer))
    )
    return Figure(what, median(seconds[peer]) / median(seconds["hpcrl"]), "×", target, detail)
