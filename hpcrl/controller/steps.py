"""The loop of a script, and a turn of it as the script has it. Knows of the run what it asks it for."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from hpcrl.controller.data_proto import DataProto
from hpcrl.controller.user_code import misuse
from hpcrl.dataflow.graph import Dataset
from hpcrl.errors import UserCodeError


class Turns(Protocol):
    """The run whose turns these are."""

    def next_step(self) -> "Step | None": ...

    def batch_of(self, step: int, dataset: Dataset) -> DataProto: ...

    def log(self, step: int, numbers: Mapping[str, Any]) -> None: ...


class Steps:
    """The turns of a loop. Each begins when the loop asks for it, which ends the one before."""

    def __init__(self, run: Turns) -> None:
        self._run = run
        self._has_begun = False

    def __iter__(self) -> "Steps":
        if self._has_begun:
            raise looped_twice("run.steps() is looped over")
        return self

    def __next__(self) -> "Step":
        self._has_begun = True
        step = self._run.next_step()
        if step is None:
            raise StopIteration
        return step


def looped_twice(doing: str) -> UserCodeError:
    """A script that begins anew would be in its first loop, whichever it was in."""
    return misuse(
        f"{doing} a second time, but a script has one loop.",
        "Loop once, and decide by step.number or run.state what a step does.",
    )


@dataclass(frozen=True, eq=False)
class Step:
    """A turn of the loop."""

    run: Turns
    number: int
    """From 1."""
    epoch: int
    evaluates: bool
    """Whether it has samples of the evaluation data set."""
    prepared: Any = None
    """What `prepare` gave, where the loop has one."""

    def with_prepared(self, made: Any) -> "Step":
        return replace(self, prepared=made)

    def batch(self) -> DataProto:
        """Its samples of the training data."""
        return self.run.batch_of(self.number, "train")

    def held_out(self) -> DataProto:
        """Its samples of the evaluation data."""
        return self.run.batch_of(self.number, "eval")

    def log(self, **numbers: Any) -> None:
        """Numbers that the step's row of metrics has besides."""
        self.run.log(self.number, numbers)
