"""Which step comes next: its samples, its calls, and whether it is evaluated, checkpointed or exported. No I/O.

Step 0 is the untrained policy and has evaluation calls only; it exists where an evaluation is configured. Training
steps are numbered from 1. Clocks decide only *when* something is saved, and the decision is logged with the step.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from hpcrl.config.condition import Condition
from hpcrl.config.control import ControlConfig, Frequency


class IntervalTimer:
    """When something that is done every so many steps, epochs or seconds is due."""

    def __init__(self, frequency: Frequency, clock: Callable[[], float] = time.monotonic) -> None:
        self._every = frequency
        self._clock = clock
        self._last = clock()

    def due(self, step: int, epochs_ended: int | None) -> bool:
        """Whether it is due in `step`; `epochs_ended` is set in the step that ends an epoch, counted from 1."""
        every = self._every
        by_step = every.steps is not None and step > 0 and step % every.steps == 0
        by_epoch = every.epochs is not None and epochs_ended is not None and epochs_ended % every.epochs == 0
        by_clock = every.seconds is not None and self._clock() - self._last >= every.seconds
        if by_step or by_epoch or by_clock:
            self._last = self._clock()
            return True
        return False


@dataclass(frozen=True)
class Due:
    """What a step does besides training."""

    train: bool
    evaluate: bool
    checkpoint: bool
    export: bool


class RunSchedule:
    """The run's length and rhythm."""

    def __init__(self, control: ControlConfig, evaluates: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._control = control
        self.first_step = 0 if evaluates else 1
        self._evaluates = evaluates
        self._evaluate = IntervalTimer(control.evaluate, clock)
        self._checkpoint = IntervalTimer(control.checkpoint, clock)
        self._export = IntervalTimer(control.export, clock)
        self._stop = Condition.parse(control.stop_when) if control.stop_when else None

    @property
    def waits_for_metrics(self) -> bool:
        """Whether a step's metrics may end the run, so that the next cannot open before they are known, or the next but
        so many as calls may be behind."""
        return self._stop is not None

    def steps(self, batches: Callable[[int], int | None]) -> int:
        """How many training steps the run has, unless it is stopped before; so many epochs have so many `batches`, if
        steps are counted by epochs at all."""
        lengths = [self._control.steps, self._control.epochs and batches(self._control.epochs)]
        return min(length for length in lengths if length is not None)

    def exists(self, step: int, epoch: int) -> bool:
        """Whether the run has this step, whose batch would be of `epoch` (from 0)."""
        control = self._control
        in_steps = control.steps is None or step <= control.steps
        return in_steps and (control.epochs is None or epoch < control.epochs or step == 0)

    def due(self, step: int, epochs_ended: int | None) -> Due:
        """What happens in `step`; asked once per step, when it opens."""
        if step == 0:
            return Due(train=False, evaluate=True, checkpoint=False, export=False)
        last = step == self._control.steps or (epochs_ended is not None and epochs_ended == self._control.epochs)
        evaluate = self._evaluate.due(step, epochs_ended) or last
        checkpoint = self._checkpoint.due(step, epochs_ended)
        export = self._export.due(step, epochs_ended)
        return Due(train=True, evaluate=self._evaluates and evaluate, checkpoint=checkpoint, export=export)

    def lacks(self, reported: Collection[str]) -> str:
        """The metric that decides when to stop, where its call has reported without it; else empty."""
        return self._stop.metric if self._stop is not None and self._stop.lacks(reported) else ""

    def stops_after(self, metrics: Mapping[str, float]) -> bool:
        return self._stop is not None and self._stop.holds(metrics)

    def has_stopped(self, closed: Sequence[Mapping[str, float]], behind: int = 0) -> bool:
        """Whether the metrics of closed steps have ended the run: those of the last, or of one of so many before it: as
        many as were open by then."""
        return any(map(self.stops_after, closed[-1 - behind :]))
