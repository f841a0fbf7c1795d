"""Runs of the toy whose steps choose, and what they decided."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from support.chaos import toy_experiment
from support.faults import After, Strike

from hpcrl.config.filter_groups import FilterGroupsConfig
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Chosen, Event, Extended
from hpcrl.durable.rundir import RunDirectory
from hpcrl.recipes.toy import ToyExperiment

DECISIONS = ["E1", "E1", "C1", "E2", "C2", "E3", "C3", "E4", "E4", "C4", "E5", "C5"]
"""What steps 1 to 5 decide of an undisturbed run of `choosing_experiment`, one after another: extended, chosen."""


def choosing_experiment(
    steps: int = 5, max_rounds: int = 10, on_shortage: Literal["fail", "smaller"] = "fail"
) -> ToyExperiment:
    """Batches of 6 rows, of two samples each, of 20; about every second row is kept. Step 3 evaluates."""
    experiment = toy_experiment(steps)
    groups = FilterGroupsConfig(metric="reward", max_rounds=max_rounds, on_shortage=on_shortage)
    return replace(experiment, toy=replace(experiment.toy, samples_per_row=2, batch_size=6, filter_groups=groups))


def events_of(run: RunDirectory) -> list[Event]:
    """All that is believed now."""
    return [line.event for line in read_history(run).lines if line.event is not None]


def decisions(run: RunDirectory) -> list[str]:
    """As in `DECISIONS`."""
    return [
        f"{type(event).__name__[0]}{event.step}" for event in events_of(run) if isinstance(event, Extended | Chosen)
    ]


def after_deciding(
    folder: Path, decision: int, role: str, point: str, what: str = "KILL", target: str = "self", nth: int = 1
) -> tuple[Strike, After]:
    """A strike at a point that is passed after the master has decided for the n-th time (from 0), before it says so."""
    decided = Strike(folder, "decided", "master", "master.choose", "MARK", nth=decision + 1)
    return decided, After(folder, "struck", role, point, what, target, nth, first=decided)


def struck_cases(
    points: Sequence[tuple[str, str]], struck: Mapping[str, int], is_quick: Callable[[int, int, str], bool]
) -> Iterator[Any]:
    """Each point after each decision, with who is killed; slow, but for those that are quick by number of point, number
    of decision and who is killed."""
    for number, (role, point) in enumerate(points):
        for turn, name in enumerate(struck):
            for target in ("self", "all"):
                marks = () if is_quick(number, turn, target) else pytest.mark.slow
                yield pytest.param(
                    role, point, struck[name], target, marks=marks, id=f"{role} {point}, {name}, {target}"
                )
