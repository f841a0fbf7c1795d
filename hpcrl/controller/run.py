"""A run as its script has it, and the course of a script from its first line to its end.

The script is run from its first line in every attempt. Its loop begins at the first step that has to be made, with the
state that was recorded at the end of the step before.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcrl import plugins
from hpcrl.controller.computations import Computations
from hpcrl.controller.conversation import Conversation
from hpcrl.controller.data_proto import DataProto, StandsForRows
from hpcrl.controller.declared import DeclaredCalls
from hpcrl.controller.groups import Calls, WorkerGroup
from hpcrl.controller.json_values import arguments, result_text, state_text
from hpcrl.controller.line import Line
from hpcrl.controller.silence import Silence
from hpcrl.controller.user_code import generators_kept, listed, misuse, place, told
from hpcrl.controller.view import ExperimentView
from hpcrl.data.samples import sample_seed
from hpcrl.dataflow.graph import Dataset
from hpcrl.durable.journal import Made
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
        raise UserCodeError("The script has a yield, so it does nothing when it is called.", "Take it out of it.")
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
        declared = DeclaredCalls.of(world.algorithm, world.plan.calls)
        self._calls = Calls(talk, declared, world.computations, world.plan)
        self._step = begins.step - 1
        self._loops = False
        self._logged: dict[str, float] = {}
        self._over = False
        self.state: dict[str, Any] = {}
        """Texts, numbers, lists and dicts, as JSON has them: all that lives from turn to turn."""
        self.experiment = ExperimentView(world.experiments, self._settings)
        """The settings, as the script's second argument."""
        self._seed_all(0)

    @property
    def where(self) -> str:
        """How far it is, in words."""
        if self._talk.turn is not None:
            return f"step {self._step}"
        return f"what follows step {self._step}" if self._loops else "what comes before its loop"

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

    def steps(self) -> "Steps":
        """The turns that are to be made, each a step of the run."""
        if not self._loops and self._begins.state is not None:
            self._take_state(self._begins.state)
        elif self._talk.turn is None:
            self._take_state(state_text(self.state))
        self._loops = True
        return Steps(self)

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
        turn = self._talk.turn
        self._talk.current(turn.step if turn else 0, f"run.once({wanted})")
        text, values = arguments(wanted, args)
        at = place()

        def do(call: str) -> str:
            if self._world.rehearses:
                return result_text(f"rehearsed= of {wanted}", rehearsed)
            try:
                with generators_kept():
                    made = function(f"{self._world.identity}/{self._step}/{call}", *values)
            except HpcrlError:
                raise
            except (Exception, SystemExit) as error:
                raise UserCodeError(f"{call} ({at}) failed in {self.where}.\n{told(error)}") from error
            return result_text(call, made)

        return json.loads(self._talk.once(wanted, text, do))

    def rng(self, name: str) -> np.random.Generator:
        """Random numbers that follow from the run's seed, the step and this name alone, from the first one on."""
        return np.random.default_rng(self._seed(name))

    def next_turn(self) -> TurnBegun | None:
        """End the turn that is open, and begin the next, if there is one."""
        self.end_turn()
        turn = None if self._over else self._talk.open_turn(self._step + 1)
        if turn is None:
            self._over = True
            return None
        self._step += 1
        self._seed_all(self._step)
        return turn

    def end_turn(self) -> None:
        """End the turn that is open, if there is one."""
        if self._talk.turn is not None:
            text = state_text(self.state)
            self._talk.close_turn(text, dict(self._logged))
            self._logged.clear()
            self._take_state(text)

    def finish(self) -> None:
        """The script has returned."""
        self.end_turn()
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
                self._logged[name] = float(value)
            except (TypeError, ValueError):
                raise misuse(f"step.log({name}={value!r}): this is no number.", "Log numbers.") from None

    def _take_state(self, text: str) -> None:
        """What was recorded takes the place of what is there, so that a turn finds the same after a kill."""
        read = json.loads(text)
        self.state.clear()
        self.state.update(read)

    def _settings(self) -> int:
        version = self._talk.settings
        return max(self._world.experiments) if version is None else version

    def _seed(self, name: str) -> int:
        step = self._step if self._talk.turn is not None else 0
        return sample_seed(self.experiment.seed, step, SCRIPT, name)

    def _seed_all(self, step: int) -> None:
        """What draws from the generators of a process draws the same in every attempt."""
        seed = sample_seed(self.experiment.seed, step, SCRIPT, "")
        random.seed(seed)
        np.random.seed(seed % 2**32)


class Steps:
    """The turns of a loop. Each begins when the loop asks for it, which ends the one before."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __iter__(self) -> "Steps":
        return self

    def __next__(self) -> "Step":
        turn = self._run.next_turn()
        if turn is None:
            raise StopIteration
        return Step(self._run, turn.step, turn.epoch, bool(turn.eval_ids))


@dataclass(frozen=True, eq=False)
class Step:
    """A turn of the loop."""

    run: Run
    number: int
    """From 1."""
    epoch: int
    evaluates: bool
    """Whether it has samples of the evaluation data set."""

    def batch(self) -> DataProto:
        """Its samples of the training data."""
        return self.run.batch_of(self.number, "train")

    def held_out(self) -> DataProto:
        """Its samples of the evaluation data."""
        return self.run.batch_of(self.number, "eval")

    def log(self, **numbers: Any) -> None:
        """Numbers that the step's row of metrics has besides."""
        self.run.log(self.number, numbers)
