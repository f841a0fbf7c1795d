"""A run as its script has it, and the course of a script from its first line to its end.

The script is run from its first line in every attempt. Its loop begins at the first step that has to be made, with the
state that was recorded at the end of the step before.
"""

import inspect
import json
import random
import reprlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcrl import plugins
from hpcrl.controller.ahead import Preparation, Prepare
from hpcrl.controller.computations import Computations
from hpcrl.controller.conversation import Conversation
from hpcrl.controller.data_proto import DataProto, StandsForRows
from hpcrl.controller.declared import DeclaredCalls
from hpcrl.controller.groups import Calls, WorkerGroup
from hpcrl.controller.json_values import arguments, result_text, state_text, with_defaults
from hpcrl.controller.line import Line
from hpcrl.controller.silence import Silence
from hpcrl.controller.state import RunState
from hpcrl.controller.steps import Step, Steps, looped_twice
from hpcrl.controller.user_code import generators_kept, listed, misuse, place, refuse_uncallable, told
from hpcrl.controller.view import ExperimentView
from hpcrl.data.samples import sample_seed
from hpcrl.dataflow.graph import Dataset
from hpcrl.durable.made import Made
from hpcrl.errors import HpcrlError, UserCodeError
from hpcrl.placement.plan import Plan
from hpcrl.recipes.algorithm import SCRIPT, Algorithm
from hpcrl.wire.script_messages import ScriptBegins, TurnBegun

Script = Callable[[Any, Any], object]


@dataclass(frozen=True)
class World:
    """What a script runs in."""

    algorithm: Algorithm[Any]
    plan: Plan
    experiments: Mapping[int, Any]
    """Version of the run's settings → experiment."""
    computations: Computations
    identity: str = ""
    """Of the run; it has no other's."""
    rehearses: bool = False
    """Nothing outside of the run is done."""


def follow(script: Script, line: Line, world: World, silence: Silence | None = None) -> None:
    """The whole course of a script; returns once it has ended. `silence` hears when it asks and waits.

    Raises:
        UserCodeError: it raised, or does what it must not.
    """
    script = _unguarded(script)
    talk = Conversation(line, world.computations.forget, silence)
    run = Run(talk, talk.begin(), world)
    try:
        left = script(run, run.experiment)
    except HpcrlError:
        raise
    except (Exception, SystemExit) as error:
        raise UserCodeError(f"The script failed in {run.where}.\n{told(error)}") from error
    if talk.broken is not None:
        raise talk.broken
    if isinstance(left, Iterator):
        raise UserCodeError("The script has a yield, so calling it does nothing.", "Remove the yield.")
    if inspect.iscoroutine(left):
        left.close()
        raise UserCodeError("The script is an async def, so calling it does nothing.", "Make it a def.")
    run.finish()


def _unguarded(script: Script) -> Script:
    """A declaration in a user's file guards its functions by what plans and checks need; here its own errors count."""
    code = getattr(script, "__code__", None)
    if code is None or code.co_filename != plugins.__file__:
        return script
    guarded: Script = script.__wrapped__  # type: ignore[attr-defined]
    return guarded


class Run:
    """What a script is given: its groups, its turns, and what lives from turn to turn.

    A script that begins anew, after a kill, makes everything anew but `state`, which is what it was when the last turn
    ended.
    """

    def __init__(self, talk: Conversation, begins: ScriptBegins, world: World) -> None:
        self._talk = talk
        self._begins = begins
        self._world = world
        newest = world.experiments[max(world.experiments)]
        declared = DeclaredCalls.of(world.algorithm, world.plan.calls, newest)
        self._calls = Calls(
            talk,
            declared,
            world.computations,
            world.plan,
            lambda: world.algorithm.batch(world.experiments[self._version()]),
        )
        self._step = begins.step - 1
        self._loops = False
        self._logged: dict[int, dict[str, float]] = {}
        self._ahead: Preparation | None = None
        self._over = begins.left is not None
        self._thread = threading.get_ident()
        self._state = RunState()
        self.experiment = ExperimentView(world.experiments, self._settings)
        """The settings, as the script's second argument."""
        self._seed_all(0)

    @property
    def where(self) -> str:
        """How far it is, in words."""
        if self._talk.turn is not None:
            return f"step {self._talk.turn.step}"
        return f"what follows step {self._step}" if self._loops else "what comes before its loop"

    @property
    def state(self) -> dict[str, Any]:
        """Texts, numbers, lists and dicts, as JSON has them: all that lives from turn to turn."""
        self.refuse_elsewhere("run.state")
        return self._state.values

    @state.setter
    def state(self, values: dict[str, Any]) -> None:
        self.refuse_elsewhere("run.state")
        self._state.values = values

    def refuse_elsewhere(self, doing: str) -> None:
        """Raises UserCodeError where a computation does this, or another thread than the script's own: neither has a
        turn, from which it follows."""
        computation = self._world.computations.here
        if computation or not self._talk.is_own_thread:
            who = f"the computation {computation}" if computation else "another thread than the script's own"
            error = misuse(
                f"{doing} is read by {who}, which does not know the step.",
                "Read it, or draw, in the script, and give what comes of it as an argument.",
            )
            self._talk.broken = self._talk.broken or error
            raise error

    def groups(self, *roles: str) -> tuple[WorkerGroup, ...]:
        """The worker groups of these roles; of all, in the recipe's order, where none is named."""
        return tuple(self.group(role) for role in roles or self._calls.declared.roles)

    def group(self, role: str) -> WorkerGroup:
        """The worker group of a role."""
        if role not in self._calls.declared.roles:
            raise misuse(
                f"run.group({role!r}): the recipe has no call of this role; it has calls of "
                f"{listed(self._calls.declared.roles)}.",
                "Name one of these, or declare a call of it: settings may leave a role out.",
            )
        return WorkerGroup(role, self._world.plan, self._calls)

    def steps(self, prepare: Prepare | None = None, lag: int = 0) -> Steps:
        """The turns that are to be made, each a step of the run.

        `prepare(run, e, step)` is called for each of them before, and gives what is `step.prepared` in the loop: at the
        turn's beginning, or with a `lag` beside the turn so many steps before it, on a thread of its own. It then reads
        roles and `run.state` as the turn before that one has left them. It changes neither.
        """
        if self._loops:
            raise looped_twice("run.steps() is called")
        initial = self._state.begin(self._begins.state)
        self._talk.begin_loop()
        if prepare is not None or lag:
            self._ahead = self._preparation(prepare, lag, initial)
        self._refuse_other_lag(lag)
        self._loops = True
        return Steps(self)

    def _preparation(self, prepare: Prepare | None, lag: Any, initial: str) -> Preparation:
        if prepare is None or isinstance(lag, bool) or not isinstance(lag, int) or lag < 0:
            raise misuse(
                f"run.steps(prepare={getattr(prepare, '__name__', prepare)}, lag={lag!r}): lag must be a "
                "whole number of 0 or more, and needs a prepare.",
                "Write run.steps(prepare=FUNCTION, lag=1).",
            )
        refuse_uncallable(prepare, "run.steps(prepare=…)")
        begins = self._begins
        states = {0: initial}
        if begins.state is not None:
            after = [state_text(with_defaults(text, initial)) for text in (*begins.earlier, begins.state)]
            states.update(enumerate(after, begins.step - len(after)))
        if lacking := [step for step in range(max(begins.step - 1 - lag, 0), begins.step) if step not in states]:
            raise misuse(
                f"run.steps(lag={lag}): the checkpoint has no state of step {lacking[0]}, from which step "
                f"{begins.step} is prepared.",
                "Keep the lag that the run was begun with.",
            )
        made = Preparation(self, self._talk, prepare, lag, states)
        if begins.left is not None:
            made.leave(begins.left)
        if lag and not self.rehearses:
            made.begin()
        return made

    def _refuse_other_lag(self, lag: int) -> None:
        """The recipe goes by the setting, where the experiment has it."""
        wanted = getattr(self._world.experiments[max(self._world.experiments)], "lag", lag)
        if wanted != lag:
            raise misuse(
                f"run.steps(lag={lag}), but lag = {wanted} in the settings.", "Write run.steps(prepare=…, lag=e.lag)."
            )

    @property
    def roles(self) -> tuple[str, ...]:
        """Those that it has groups of."""
        return self._calls.declared.roles

    @property
    def rehearses(self) -> bool:
        return self._world.rehearses

    def compute(
        self,
        function: Callable[..., Any],
        batch: StandsForRows,
        *args: Any,
        name: str | None = None,
        blocking: bool = True,
    ) -> Any:
        """Run `function(rows, *args)` in the script's worker, as the computation that the recipe declares under its
        name, or under `name`. `rows` has a list of rows for each declared input, and so has what it returns for each
        declared output. `args` are JSON, or sections of the experiment. Gives the rows, or a future of them.
        """
        return self._calls.compute(function, batch, args, name, blocking)

    def once(self, function: Callable[..., Any], *args: Any, rehearsed: Any = None, name: str | None = None) -> Any:
        """Do something outside of the run: `function(key, *args)`. Gives what it returned, which is JSON of at most 64
        KiB, once that is on disk; from then on it is not done again. A kill before repeats it, with the same key and
        arguments: whoever is told may know by the key that he was told before. A rehearsal does nothing, and
        takes it that `rehearsed` came of it.
        """
        wanted = str(name or getattr(function, "__name__", type(function).__name__))
        refuse_uncallable(function, "run.once")
        turn = self._talk.turn
        step = turn.step if turn else 0
        self._talk.refuse_before(f"run.once({wanted})")
        self._talk.current(step, f"run.once({wanted})")
        text, values = arguments(wanted, args)
        at = place()

        def do(call: str) -> str:
            if self._world.rehearses:
                return result_text(f"rehearsed= of {wanted}", rehearsed)
            try:
                # Beside the loop, which draws meanwhile, they would be set back under its hands.
                with generators_kept() if threading.get_ident() == self._thread else nullcontext():
                    made = function(f"{self._world.identity}/{step}/{call}", *values)
            except HpcrlError:
                raise
            except (Exception, SystemExit) as error:
                raise UserCodeError(f"{call} ({at}) failed in {self.where}.\n{told(error)}") from error
            return result_text(call, made)

        return json.loads(self._talk.once(wanted, text, do))

    def rng(self, name: str) -> np.random.Generator:
        """Random numbers that follow from the run's seed, the step and this name alone, from the first one on."""
        self.refuse_elsewhere(f"run.rng({name!r})")
        return np.random.default_rng(self._seed(name))

    def next_step(self) -> Step | None:
        """End the turn that is open, and begin the next, if there is one."""
        self.end_turn()
        step = None if self._over else self._begun(self._step + 1)
        if step is None:
            self._over = True
        return step

    def _begun(self, number: int) -> Step | None:
        ahead = self._ahead
        if ahead is not None and ahead.lag:
            if (prepared := ahead.take(number)) is not None:
                self._go_on(number)
            return prepared
        turn = self._talk.open_turn(number)
        if turn is None:
            return None
        self._step = number
        self._seed_all(number)
        step = self.step_of(turn)
        return step if ahead is None else ahead.prepare(step)

    def _go_on(self, number: int) -> None:
        self._talk.go_on(number)
        self._step = number
        self._seed_all(number)

    def step_of(self, turn: TurnBegun) -> Step:
        return Step(self, turn.step, turn.epoch, bool(turn.eval_ids))

    def end_turn(self, left: bool = False) -> None:
        """End the turn that is open, if there is one, and the loop with it where it is left."""
        if self._talk.turn is not None:
            text = self._state.end()
            self._talk.close_turn(text, self._logged.pop(self._step, {}), left)
            if self._ahead is not None:
                self._ahead.ended(self._step, text)

    def finish(self) -> None:
        """The script has returned. Steps that were prepared for its loop end as they are."""
        ahead = self._ahead if self._ahead is not None and self._ahead.lag else None
        if ahead is not None and self._begins.left is None:
            ahead.leave(self._step)
        self.end_turn(left=True)
        for step in ahead.left() if ahead is not None else ():
            self._go_on(step.number)
            self.end_turn(left=True)
        self._talk.end(self._step)

    def batch_of(self, step: int, dataset: Dataset) -> DataProto:
        """The samples of the open turn with what the data has of them."""
        self._talk.current(step, "step.batch()" if dataset == "train" else "step.held_out()")
        turn, plan = self._talk.turn, self._world.plan
        assert turn is not None
        ids, keys = (turn.ids, plan.dataset_keys) if dataset == "train" else (turn.eval_ids, plan.eval_keys)
        if not ids:
            raise misuse(
                f"step.held_out(): step {step} does not evaluate.",
                "Test step.evaluates before; control.evaluate sets it.",
            )
        return DataProto(step, ids, dict.fromkeys(keys, (Made("", len(ids)),)), dataset, self._talk)

    def log(self, step: int, numbers: Mapping[str, Any]) -> None:
        """Keep numbers with the open turn."""
        self._talk.current(step, "step.log()")
        for name, value in numbers.items():
            try:
                self._logged.setdefault(step, {})[name] = float(value)
            except (TypeError, ValueError):
                raise misuse(f"step.log({name}={reprlib.repr(value)}): this is not a number.", "Log numbers.") from None

    def _settings(self) -> int:
        """The version that `e` shows to who may read it."""
        self.refuse_elsewhere("e")
        return self._version()

    def _version(self) -> int:
        version = self._talk.settings
        return max(self._world.experiments) if version is None else version

    def _seed(self, name: str) -> int:
        step = self._talk.turn.step if self._talk.turn is not None else 0
        return sample_seed(self.experiment.seed, step, SCRIPT, name)

    def _seed_all(self, step: int) -> None:
        """What draws from the generators of a process draws the same in every attempt."""
        seed = sample_seed(self.experiment.seed, step, SCRIPT, "")
        random.seed(seed)
        np.random.seed(seed % 2**32)
