"""Preparing a script's steps ahead of its loop: on a thread of its own, beside the turn so many steps before.

In a rehearsal there is no thread: what is prepared is so at the beginning of that turn.
"""

import inspect
import json
import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from hpcrl.controller.conversation import Conversation
from hpcrl.controller.data_proto import StandsForRows
from hpcrl.controller.groups import WorkerGroup
from hpcrl.controller.json_values import state_text
from hpcrl.controller.user_code import generators, listed, misuse, told
from hpcrl.errors import HpcrlError, UserCodeError
from hpcrl.wire.script_messages import TurnBegun


class Step(Protocol):
    """A turn of the loop."""

    @property
    def number(self) -> int: ...

    def with_prepared(self, made: Any) -> "Step": ...


class Room(Protocol):
    """What of a run is needed here."""

    @property
    def roles(self) -> tuple[str, ...]: ...

    @property
    def rehearses(self) -> bool: ...

    @property
    def experiment(self) -> Any: ...

    def group(self, role: str) -> WorkerGroup: ...

    def compute(self, function: Callable[..., Any], batch: StandsForRows, *args: Any, **how: Any) -> Any: ...

    def once(self, function: Callable[..., Any], *args: Any, **how: Any) -> Any: ...

    def rng(self, name: str) -> np.random.Generator: ...

    def step_of(self, turn: TurnBegun) -> Step: ...

    def refuse_elsewhere(self, doing: str) -> None: ...


Prepare = Callable[[Any, Any, Any], Any]
"""(run, experiment, step) → what the loop gets as `step.prepared`."""


class PreparingRun:
    """The run as `prepare` has it: all but its steps. `state` is that after the step from which this one is prepared;
    nothing is written into it."""

    def __init__(self, run: Room, talk: Conversation, state: str) -> None:
        self._run = run
        self._talk = talk
        self._state: dict[str, Any] = json.loads(state)
        self._was = state_text(self._state)
        self.compute, self.once, self.rng = run.compute, run.once, run.rng

    @property
    def state(self) -> dict[str, Any]:
        """As `Run.state`."""
        self._run.refuse_elsewhere("run.state")
        return self._state

    @state.setter
    def state(self, values: dict[str, Any]) -> None:
        self._run.refuse_elsewhere("run.state")
        self._state = values

    def groups(self, *roles: str) -> tuple[WorkerGroup, ...]:
        """As `Run.groups`. All are to be taken before the first call is asked for."""
        return tuple(self.group(role) for role in roles or self._run.roles)

    def group(self, role: str) -> "WorkerGroup":
        """As `Run.group`."""
        group = self._run.group(role)
        self._talk.takes(role)
        return group

    def refuse_changed_state(self) -> None:
        """Raises UserCodeError where the state is not what it was."""
        if state_text(self.state) != self._was:
            was = json.loads(self._was)
            changed = sorted(key for key in {*was, *self.state} if was.get(key) != self.state.get(key))
            raise misuse(
                f"prepare has changed {listed(f'run.state[{key!r}]' for key in changed)}, which only the loop may.",
                "Return what the loop needs: it is step.prepared there.",
            )


class Preparation:
    """Of one run. `lag` is how many steps before its own a step is prepared; 0: at its own turn's beginning.

    `states` are those after steps, by step; that of step 0, and of any before, is the one with which a run begins.
    """

    def __init__(self, run: Room, talk: Conversation, prepare: Prepare, lag: int, states: dict[int, str]) -> None:
        self.lag = lag
        self._run = run
        self._talk = talk
        self._prepare = prepare
        self._states = states
        self._ready: dict[int, Step] = {}
        self._changed = threading.Condition()
        self._next = max(states, default=0) + 1
        self._last: int | None = None
        """Once the loop is left: the last step that is prepared."""
        self._ended = False

    # ── the loop's thread ─────────────────────────────────────────────────────────────────────────────────────────────
    def begin(self) -> None:
        """Prepare the steps from the first one on, each as soon as it may be."""
        threading.Thread(target=self._follow, name="script ahead", daemon=True).start()

    def ended(self, step: int, state: str) -> None:
        """The turn of this step is over, and left this state."""
        with self._changed:
            self._states[step] = state
            for older in [each for each in self._states if 0 < each < step - self.lag]:
                del self._states[older]
            self._changed.notify_all()

    def take(self, step: int) -> Any:
        """The step, prepared; waits for it."""
        while self._run.rehearses and self._next <= step + self.lag and not self._ended:
            self._ended = not self._ahead(self._next)
        with self._talk.resting(), self._changed:
            self._changed.wait_for(lambda: step in self._ready or self._ended)
            if step in self._ready:
                return self._ready.pop(step)
            if self._talk.broken is not None:
                raise self._talk.broken
            return None

    def leave(self, step: int) -> None:
        """The loop is left in the turn of this step: what belongs beside it is prepared, and nothing else."""
        with self._changed:
            self._last = step + self.lag
            self._changed.notify_all()

    def left(self) -> list[Step]:
        """Those that were prepared and have had no turn, once all of them are."""
        with self._talk.resting(), self._changed:
            self._changed.wait_for(lambda: self._ended or self._run.rehearses)
            return [step for _, step in sorted(self._ready.items())]

    def prepare(self, step: Step) -> Any:
        """At the beginning of its own turn."""
        with self._talk.preparing():
            return self._prepared(step)

    # ── the thread ahead ──────────────────────────────────────────────────────────────────────────────────────────────
    def _follow(self) -> None:
        self._talk.join()
        try:
            while self._may_prepare() and self._ahead(self._next):
                pass
        except BaseException as error:
            self._talk.fail(error)
        finally:
            self._talk.leave()
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _may_prepare(self) -> bool:
        """Once the state is there; False once the loop is left before."""
        before = max(self._next - 1 - self.lag, 0)
        with self._talk.resting(), self._changed:
            self._changed.wait_for(lambda: before in self._states or self._is_over)
            return not self._is_over

    @property
    def _is_over(self) -> bool:
        return self._talk.broken is not None or (self._last is not None and self._next > self._last)

    def _ahead(self, number: int) -> bool:
        """Prepare this step, whose state is there. Whether there is such a one."""
        turn = self._talk.open_turn(number, self.lag)
        if turn is None:
            return False
        step = self._prepared(self._run.step_of(turn))
        self._talk.prepared()
        with self._changed:
            self._ready[number] = step
            self._next = number + 1
            self._changed.notify_all()
        return True

    def _prepared(self, step: Step) -> Step:
        run = PreparingRun(self._run, self._talk, self._states[max(step.number - 1 - self.lag, 0)])
        drawn = generators() if self.lag and self._run.rehearses else None
        try:
            made = self._prepare(run, self._run.experiment, step)
        except HpcrlError:
            raise
        except (Exception, SystemExit) as error:
            raise UserCodeError(f"The script failed in step {step.number}.\n{told(error)}") from error
        if inspect.isgenerator(made) or inspect.iscoroutine(made):
            raise misuse(
                f"prepare returned a {type(made).__name__}, so none of it has been executed.",
                "Make prepare a def without a yield, which returns what it has made.",
            )
        run.refuse_changed_state()
        if drawn is not None and drawn != generators():
            raise misuse(
                f"prepare draws from the generators of random or numpy.random in step {step.number}, beside the loop, "
                "which may draw from them too.",
                "Draw from run.rng(name), which is a generator of its own.",
            )
        return step.with_prepared(made)
