"""The rehearsal of a script, before its run is submitted: three turns on made-up rows, and two of them once more.

The second time they begin, in another process, from the state that the first turn left: as after a kill. Another clock
and another order of sets are there besides. A script that asks for something else then has kept something outside of
`run.state`, and would lose it. One that has looked at a clock may ask for the same by luck, and is rehearsed again,
with clocks that jump. Last it is rehearsed with no turn left: as after a kill that follows the last one.
"""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from hpcrl.config.experiment import ExperimentConfig, to_dict
from hpcrl.controller.computed_rows import RowsComputed
from hpcrl.controller.rehearse import ORDER, TRACE, Asked, Order, Trace
from hpcrl.data.order import group_of
from hpcrl.dataflow.graph import recipe_name
from hpcrl.errors import ConfigurationError, Problem
from hpcrl.recipes.algorithm import algorithm_of
from hpcrl.stacks import OWN
from hpcrl.wire.script_messages import CallAsked, OnceAsked, TurnEnded

TURNS = 3
LIMIT_S = 300.0
JUMPING = range(2, 6)
"""Rehearsals of a script that looks at clocks: four, so that a branch on an even second is missed once in 250 times."""
TAIL = 4000
SETTING = "control.rehearse"
OFF = f"Fix the script. {SETTING} = false leaves the rehearsal out, where it cannot know what the script needs."
KEEP = (
    "Keep all that lives from step to step in run.state, draw from run.rng(name), and bring sets into an order by "
    "sorted()."
)
RETURNED = "the script had returned"
OTHER = "made other rows"
ADVICE = {
    RETURNED: "A loop ends early by run.state or step.number; control.steps says how many steps a run has.",
    OTHER: "A computation makes its rows of what it is given: rows, and arguments, a seed among them.",
}
"""What is advised besides, by what is said."""
AFTER = (
    "A script that is killed after its last step runs again without a step: after the loop, use run.state, not the "
    "loop's variables."
)


def rehearse(experiment: ExperimentConfig, limit_s: float = LIMIT_S) -> Iterator[str]:
    """Rehearse the script of an experiment that is valid; notices of what it does not do.

    Raises:
        ConfigurationError: the script fails, does what it must not, or would go another way after a kill.
    """
    algorithm = algorithm_of(experiment)
    assert algorithm.script is not None
    turns = min(TURNS, experiment.control.steps or TURNS)
    with tempfile.TemporaryDirectory(prefix="hpcrl-") as folder:
        first = _rehearsed(experiment, turns, limit_s, f"{folder}/computed.npz")
    calls = [call.name for call in algorithm.calls(experiment)]
    made = {recipe_name(it.call, calls) for it in first.asked if isinstance(it, CallAsked)}
    if unasked := [call for call in calls if call not in made]:
        yield (
            f"in {turns} rehearsed steps the script did not ask for {', '.join(unasked)}. Their workers and "
            "memory are reserved all the same."
        )
    yield from _alone(first, algorithm.batch(experiment).comparing, calls)


def _alone(trace: Trace, comparing: Collection[str], calls: Sequence[str]) -> Iterator[str]:
    """The first call that compares the samples of a row, and is asked for on one of each."""
    for it in trace.asked:
        if not isinstance(it, CallAsked) or recipe_name(it.call, calls) not in comparing or "advantages" in it.inputs:
            continue
        if len(set(map(group_of, it.ids))) == len(it.ids):
            yield (
                f"in step {it.step} the script asks ({it.at}) for {it.call} on {len(it.ids)} samples of as many "
                "prompts. It compares the samples of a prompt with each other: their advantages are all 0, and "
                "nothing is learnt from their scores. Choose among prompts, not among the samples of one."
            )
            return


def _rehearsed(experiment: ExperimentConfig, turns: int, limit_s: float, computed: str) -> Trace:
    """Both rehearsals; what the script asked for in the first. Raises ConfigurationError."""
    first = _traced(experiment, _order(experiment, 1, turns, (), 0, limit_s, computed))
    ends = {it.step: it for it in first.asked if isinstance(it, TurnEnded)}
    if not ends:
        raise _refused(experiment, "it returned without a step.", "Loop over run.steps().")
    if 1 in ends and turns > 1:
        order = partial(_order, experiment, 2, turns, (ends[1].state,), limit_s=limit_s, computed=computed)
        asked = _in_turns(first)
        _compare(experiment, turns, asked, _in_turns(_traced(experiment, order(1))))
        for number in JUMPING if first.looked else ():
            again = _answered(experiment, order(number))
            # What a computation makes may depend on a time limit of its own.
            asks, found = _without_rows(asked), _without_rows(_in_turns(again))
            # Where it fails, a time limit of its own was over as soon as it began: it has asked for less.
            _compare(experiment, turns, asks[: len(found)] if again.error else asks, found)
    _rehearse_none(experiment, ends, limit_s, computed)
    return first


def _without_rows(asked: Sequence[Asked]) -> list[Asked]:
    return [it for it in asked if not isinstance(it, RowsComputed)]


def _rehearse_none(experiment: ExperimentConfig, ends: Mapping[int, TurnEnded], limit_s: float, computed: str) -> None:
    """What follows the loop, where no turn is left. Raises ConfigurationError where that fails."""
    last = max(ends)
    states = tuple(ends[step].state for step in sorted(ends))
    trace = _answered(experiment, _order(experiment, last + 1, last, states, 1, limit_s, computed))
    if trace.error:
        raise _refused(
            experiment, f"begun again after its last step, it {_failure(trace)}", "\n".join((*trace.advice, AFTER))
        )


def _in_turns(trace: Trace) -> list[Asked]:
    """What it asked for from the second turn on: what comes before the loop is asked for each time."""
    return [it for it in trace.asked if it.step > 1]


def _compare(experiment: ExperimentConfig, turns: int, first: Sequence[Asked], again: Sequence[Asked]) -> None:
    """Raises ConfigurationError where they differ."""
    if what := difference(first, again):
        raise _refused(
            experiment,
            f"steps 2 to {turns}, made once more from the state after step 1, went another way. {what} "
            "Something lives outside run.state, or a clock or a set decides.",
            " ".join((KEEP, *(advice for words, advice in ADVICE.items() if words in what))),
        )


def difference(first: Sequence[Asked], again: Sequence[Asked]) -> str:
    """The first thing that a script asked otherwise the second time, in words; "" where there is none."""
    for one, two in zip_longest(first, again):
        if what := _differs(one, two):
            return what
    return ""


def _differs(one: Asked | None, two: Asked | None) -> str:
    if one is None or two is None or type(one) is not type(two) or one.step != two.step:
        return f"First {_said(one)}, then {_said(two)}."
    if isinstance(one, CallAsked) and isinstance(two, CallAsked):
        return _calls_differ(one, two)
    if isinstance(one, OnceAsked) and isinstance(two, OnceAsked):
        return _onces_differ(one, two)
    if isinstance(one, RowsComputed) and isinstance(two, RowsComputed):
        return _rows_differ(one, two)
    assert isinstance(one, TurnEnded) and isinstance(two, TurnEnded)
    where = f"At the end of step {one.step}, {_places(one.at, two.at)},"
    if one.state != two.state:
        return f"{where} run.state{_pair(msgspec.json.decode(one.state), msgspec.json.decode(two.state))}."
    if repr(one.logged) != repr(two.logged):
        return f"{where} step.log{_pair(one.logged, two.logged)}."
    return ""


def _calls_differ(one: CallAsked, two: CallAsked) -> str:
    if one.call != two.call:
        return f"First {_said(one)}, then {_said(two)}."
    where = f"In step {one.step}, {_places(one.at, two.at)}, {one.call} was asked for"
    if one.ids != two.ids:
        at = next((i for i, pair in enumerate(zip(one.ids, two.ids, strict=False)) if pair[0] != pair[1]), None)
        if at is None:
            return f"{where} on {len(one.ids)} samples, then on {len(two.ids)}."
        return f"{where} with {one.ids[at]!r} as sample {at + 1} of {len(one.ids)}, then with {two.ids[at]!r}."
    if one.inputs != two.inputs:
        key = next(key for key in one.inputs if one.inputs[key] != two.inputs.get(key))
        return f"{where} with {key} made by {_makers(one, key)}, then by {_makers(two, key)}."
    if one.arguments != two.arguments:
        return f"{where} with the arguments {one.arguments}, then with {two.arguments}."
    return ""


def _onces_differ(one: OnceAsked, two: OnceAsked) -> str:
    if one.call != two.call:
        return f"First {_said(one)}, then {_said(two)}."
    if one.arguments != two.arguments:
        where = f"In step {one.step}, {_places(one.at, two.at)}, run.once({one.call}) was"
        return f"{where} with the arguments {one.arguments}, then with {two.arguments}."
    return ""


def _rows_differ(one: RowsComputed, two: RowsComputed) -> str:
    """Of calls that were asked for alike."""
    other = ", ".join(key for key in one.digests if one.digests[key] != two.digests.get(key))
    where = f"In step {one.step}, {_places(one.at, two.at)},"
    return f"{where} {one.call} {OTHER} of {other} the second time." if other else ""


def _pair(one: Mapping[str, Any], two: Mapping[str, Any]) -> str:
    """`["beta"] was 1, then 2`, of the first key that differs."""
    key = next(
        key for key in sorted({*one, *two}) if repr(one.get(key)) != repr(two.get(key)) or (key in one) != (key in two)
    )
    said = [repr(it[key]) if key in it else "not there" for it in (one, two)]
    return f"[{key!r}] was {said[0]}, then {said[1]}"


def _said(it: Asked | None) -> str:
    match it:
        case CallAsked():
            return f"{it.at} asked for {it.call} in step {it.step}"
        case RowsComputed():
            return f"{it.at} computed {it.call} in step {it.step}"
        case OnceAsked():
            return f"{it.at} came to run.once({it.call}) in step {it.step}"
        case TurnEnded():
            return f"{it.at} ended step {it.step}"
    return RETURNED


def _places(one: str, two: str) -> str:
    return one if one == two else f"{one} and {two}"


def _makers(asked: CallAsked, key: str) -> str:
    return ", ".join(run.call or "the data" for run in asked.inputs.get(key, ())) or "nobody"


def _refused(experiment: ExperimentConfig, text: str, advice: str) -> ConfigurationError:
    return ConfigurationError(
        [Problem(("algorithm",), f"algorithm = {experiment.algorithm}: its script was rehearsed, and {text}", advice)]
    )


def _order(
    experiment: ExperimentConfig,
    first: int,
    last: int,
    states: tuple[str, ...],
    number: int,
    limit_s: float,
    computed: str,
) -> Order:
    return Order(to_dict(experiment), os.getpid(), first, last, states, number, limit_s, computed)


def _traced(experiment: ExperimentConfig, order: Order) -> Trace:
    """Rehearse these turns. Raises ConfigurationError where the script fails in them."""
    trace = _answered(experiment, order)
    if trace.error:
        made_up = "Its rows were made up" + _undone(trace)
        raise _refused(experiment, f"{_failure(trace)}\n{made_up}", "\n".join((*trace.advice, OFF)))
    return trace


def _failure(trace: Trace) -> str:
    failed = trace.error.removeprefix("The script failed in ")
    return f"failed in {failed}" if failed != trace.error else f"failed:\n{trace.error}"


def _undone(trace: Trace) -> str:
    """What `run.once` has not done."""
    done = dict.fromkeys(it.call for it in trace.asked if isinstance(it, OnceAsked))
    return f"; run.once called nothing, and gave what rehearsed= says of {', '.join(done)}." if done else "."


def _answered(experiment: ExperimentConfig, order: Order) -> Trace:
    """What a process of its own answers. Raises ConfigurationError where it doesn't."""
    with tempfile.TemporaryDirectory(prefix="hpcrl-") as name:
        folder = Path(name)
        (folder / ORDER).write_bytes(msgspec.json.encode(order))
        command = [sys.executable, "-m", "hpcrl.controller.rehearse", str(folder)]
        environment = os.environ | {"PYTHONHASHSEED": str(order.number + 1)}
        with open(folder / "said", "wb") as said:
            status = subprocess.call(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, env=environment
            )
        if (folder / TRACE).is_file():
            return msgspec.msgpack.decode((folder / TRACE).read_bytes(), type=Trace)
        raise _unanswered(experiment, status, (folder / "said").read_text(errors="replace"), order.limit_s)


def _unanswered(experiment: ExperimentConfig, status: int, said: str, limit_s: float) -> ConfigurationError:
    """Its process ended without an answer: it took too long, or was killed."""
    if "Timeout (" not in said:
        return _refused(experiment, f"its process ended with {status}:\n{said[-TAIL:].rstrip()}", OFF)
    stack = said.rpartition("Timeout (")[2].splitlines()[1:]
    hidden = (str(OWN), "<frozen", threading.__file__)
    own = [line for line in stack if 'File "' in line and not any(file in line for file in hidden)]
    return _refused(experiment, f"had not returned after {limit_s:g} s. It was here:\n" + "\n".join(own), OFF)
