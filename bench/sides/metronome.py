"""What a trainer of TRL's is told of its steps, as a side of a duel. Imported in the peers' environments alone."""

import sys

from serving import Clock
from transformers import TrainerCallback


class Metronome(TrainerCallback):
    """Before each step but the first, which warms up, it reports the one before and waits for the next round."""

    def __init__(self, **facts: object) -> None:
        self._clock = Clock()
        self._facts = facts
        self._steps = 0

    def on_step_begin(self, *_: object, **__: object) -> None:
        if self._steps and not self._clock.wait(**self._facts):
            sys.exit(0)

    def on_step_end(self, *_: object, **__: object) -> None:
        if self._steps:
            self._facts = self._clock.lap()
        self._steps += 1

    def on_log(self, *_: object, logs: dict[str, float], **__: object) -> None:
        for name in ("loss", "logps/chosen"):
            if name in logs:
                self._facts.setdefault(name, logs[name])


class OwnLoop(Metronome):
    """For a trainer with a loop of its own, which tells of the ends of steps alone."""

    def on_step_end(self, *_: object, **__: object) -> None:
        super().on_step_end()
        self.on_step_begin()
