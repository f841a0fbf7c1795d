"""What is wrong with an algorithm's declaration, and with an experiment where its values meet it."""

import difflib
import importlib.util
from collections.abc import Iterator
from typing import Any

from hpcrl.config.condition import Condition
from hpcrl.config.data import DataConfig
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import section
from hpcrl.config.model import CPUPlacementConfig, ModelConfig, PlacementConfig
from hpcrl.data.choice import Choice
from hpcrl.dataflow.graph import lags_beyond_choice
from hpcrl.errors import ConfigurationError, Problem
from hpcrl.families.config import ROUTER_STATISTICS
from hpcrl.recipes.algorithm import SCRIPT, Algorithm, algorithm_of
from hpcrl.recipes.in_flight import unused_problems
from hpcrl.recipes.segments import refresh_problems, segment_problems


def algorithm_problems(experiment: ExperimentConfig) -> Iterator[Problem]:
    """What the algorithm says of its own settings; before that, whether it is declared as it is to be, and whether it
    is known what a step is."""
    found = [*declaration_problems(experiment)] or [*batch_problems(experiment)]
    own = algorithm_of(experiment).check(experiment)
    yield from found or [
        *own,
        *choice_problems(experiment),
        *script_problems(experiment),
        *_segment_problems(experiment),
    ]


def _segment_problems(experiment: ExperimentConfig) -> Iterator[Problem]:
    """Of responses that are drawn a segment at a time."""
    algorithm = algorithm_of(experiment)
    yield from segment_problems(experiment, algorithm.declared(experiment))
    yield from unused_problems(experiment, algorithm.declared(experiment))
    yield from refresh_problems(experiment, algorithm.script is not None, algorithm.choice(experiment) is not None)


def declaration_problems(experiment: ExperimentConfig) -> Iterator[Problem]:
    """A graph that cannot run, and roles and statistics that do not fit it."""
    algorithm = algorithm_of(experiment)
    for what in _misfits(algorithm, experiment):
        keys, text = (what.keys, what.text) if isinstance(what, Problem) else ((), what)
        text = f"algorithm = {experiment.algorithm}: {text.rstrip('.')}."
        yield Problem(("algorithm", *keys), text, "Fix the file or set algorithm.")


def _misfits(algorithm: Algorithm[Any], experiment: ExperimentConfig) -> Iterator[str | Problem]:
    try:
        algorithm.graph(experiment)
    except ConfigurationError as error:
        yield from error.found
    else:
        yield from _choice_misfits(algorithm, experiment)
    calls, forms = algorithm.declared(experiment), algorithm.forms(experiment)
    for maker, key in ((call.name, key) for call in calls for key in (*call.outputs, *call.shown) if key not in forms):
        yield f"its call {maker} makes key {key!r}, but `made` does not say of which form its rows are"
    for role in dict.fromkeys(call.role for call in calls):
        if role == SCRIPT and algorithm.script is not None:
            continue
        if role not in algorithm.roles:
            yield f"its recipe calls role {role!r}, but its roles are {', '.join(algorithm.roles)}"
            continue
        section, head = getattr(experiment, role, None), algorithm.roles[role].head
        host = algorithm.roles[role].host
        needed = PlacementConfig if head is None else ModelConfig
        if not isinstance(section, needed) or (head is None and isinstance(section, ModelConfig)):
            kind = "no model" if head is None else f"a model with a {head} head"
            yield (
                f"role {role!r} is declared with {kind}, so {algorithm.experiment.__name__} needs a section {role} "
                f"that is a {needed.__name__}, but it has {type(section).__name__}"
            )
        elif host is not None and not isinstance(section, CPUPlacementConfig):
            yield (
                f"role {role!r} is declared with a host of its own, so {algorithm.experiment.__name__} needs a section "
                f"{role} that is a CPUPlacementConfig, but it has {type(section).__name__}"
            )
        elif host is None and isinstance(section, CPUPlacementConfig) and section.workers:
            yield f"{role}.workers = {section.workers}, but role {role!r} is declared without a host of its own"
    for blend in (call for call in calls if call.kind == "blend" and call.role in algorithm.roles):
        if algorithm.roles[blend.role].decay is None:
            yield (
                f"its call {blend.name} blends {blend.blends} into {blend.role}, but role {blend.role!r} is declared "
                "without `decay`, which says how much of its own parameters it keeps after each step"
            )
    for call in sorted(algorithm.metrics.keys() - {call.name for call in calls}):
        yield f"it has metrics of a call {call!r}, but the calls are {', '.join(call.name for call in calls)}"


def _choice_misfits(algorithm: Algorithm[Any], experiment: ExperimentConfig) -> Iterator[str]:
    """Of a graph that could run if its steps did not choose."""
    choice, graph = algorithm.choice(experiment), algorithm.graph(experiment)
    if choice is None:
        return
    if any(choice.key in call.outputs for call in graph.calls.values() if call.precedes_choice):
        yield from lags_beyond_choice(graph, choice.key)
    else:
        yield f"it chooses by key {choice.key!r}, but no call on all rows drawn makes that"


def batch_problems(experiment: ExperimentConfig) -> Iterator[Problem]:
    """Ways to cut steps that do not go together, or that the algorithm doesn't have."""
    data, batch = section(experiment, "data", DataConfig), algorithm_of(experiment).batch(experiment)
    if data is None:
        return
    keys = ("data.batch_size", "data.batch_tokens")
    if (data.batch_size is None) == (data.batch_tokens is None):
        found = "both are null" if data.batch_size is None else f"they are {data.batch_size} and {data.batch_tokens}"
        what = f"Exactly one of data.batch_size and data.batch_tokens must be set, but {found}."
        yield Problem(keys, what, "Set one and leave the other null.")
    elif data.batch_tokens is not None and batch.tokens is None:
        what = f"data.batch_tokens = {data.batch_tokens} must be null for {experiment.algorithm}"
        why = "whose steps and minibatches are counted in rows."
        yield Problem(keys, f"{what}, {why}", "Set data.batch_size in its place.")
    if not data.balance:
        return
    if not batch.even:
        what = (
            f"data.balance must be false for {experiment.algorithm}: only an algorithm that learns from rows as they "
            "are knows beforehand how many tokens a step has."
        )
        yield Problem(("data.balance",), what, "Leave data.balance out.")
    elif data.batch_tokens is not None:
        what = f"data.balance is for batches of data.batch_size rows, but data.batch_tokens = {data.batch_tokens}."
        yield Problem((*keys, "data.balance"), what, "Leave one of the two out, and set data.batch_size.")
    elif data.sources:
        what = "data.balance cuts an epoch into batches, but each of data.sources has epochs of its own."
        yield Problem(("data.balance", "data.sources"), what, "Leave data.balance out, or read one source.")


def choice_problems(experiment: ExperimentConfig) -> Iterator[Problem]:
    """Settings under which no step could choose, or nobody could say how long the run is."""
    algorithm = algorithm_of(experiment)
    choice, batch, control = algorithm.choice(experiment), algorithm.batch(experiment), experiment.control
    if choice is None:
        return
    if control.epochs is not None:
        yield Problem(
            ("control.epochs", "control.steps", choice.setting),
            f"control.epochs = {control.epochs} must be null where {choice.setting} is set: steps draw as many "
            "rows as they need, so that nobody knows how many steps an epoch has.",
            "Set control.steps in its place.",
        )
    if batch.per_row == 1 and isinstance(choice, Choice):
        yield Problem(
            (choice.setting,),
            f"{choice.setting} is set, but a step has one sample of each row, which differs from no other.",
            f"Have several samples of a row, or leave {choice.setting} out.",
        )


def script_problems(experiment: ExperimentConfig) -> Iterator[Problem]:
    """What a graph decides and a script decides itself."""
    algorithm = algorithm_of(experiment)
    if algorithm.script is None:
        return
    choice = algorithm.choice(experiment)
    if choice is not None:
        yield Problem(
            (choice.setting,),
            f"{choice.setting} is set, but {experiment.algorithm} is a script: it chooses its samples itself.",
            f"Leave {choice.setting} out; in the script, batch.filter leaves samples out.",
        )


def evaluation_problems(experiment: ExperimentConfig) -> Iterator[Problem]:
    """Evaluations that would be asked for and never made."""
    rhythm, algorithm = experiment.control.evaluate, algorithm_of(experiment)
    if not any((rhythm.steps, rhythm.epochs, rhythm.seconds)):
        return
    lacking = ""
    if all(call.dataset == "train" for call in algorithm.declared(experiment)):
        lacking = f"algorithm {experiment.algorithm} has no call that evaluates"
    elif not algorithm.rows.evaluates(experiment):
        lacking = f"algorithm {experiment.algorithm} has no rows to evaluate on with these settings"
    if lacking:
        yield Problem(
            ("control.evaluate",),
            f"control.evaluate asks for evaluations, but {lacking}.",
            "Leave control.evaluate out.",
        )


def profile_problems(experiment: ExperimentConfig) -> Iterator[Problem]:
    """Calls that are to be recorded, and that there are not."""
    calls = [call.name for call in algorithm_of(experiment).calls(experiment)]
    for unknown in (name for name in experiment.control.profile.calls if name not in calls):
        yield Problem(
            ("control.profile.calls",),
            f"control.profile.calls has {unknown!r}, but the calls are {', '.join(calls)}.",
            "Set control.profile.calls to some of these.",
        )


def mirror_problems(experiment: ExperimentConfig) -> Iterator[Problem]:
    """A program whose files nobody could write."""
    kind = experiment.control.mirror
    if kind is not None and importlib.util.find_spec(kind) is None:
        yield Problem(
            ("control.mirror",),
            f"control.mirror = {kind}, but {kind} is not installed.",
            f"Run: pip install 'hpcrl[{kind}]'; or leave control.mirror out.",
        )


def statistic_problems(experiment: ExperimentConfig) -> Iterator[Problem]:
    """A condition on what no call reports, which would never hold."""
    try:
        condition = Condition.parse(experiment.control.stop_when or "")
    except ValueError:
        return
    algorithm = algorithm_of(experiment)
    if algorithm.script is not None and condition.call == SCRIPT:
        return  # what it logs is known where it does
    if setting := algorithm.uncomputed(experiment).get(condition.metric):
        knob = setting.partition(" = ")[0]
        yield Problem(
            ("control.stop_when", knob),
            f"control.stop_when = {experiment.control.stop_when!r} never holds: with {setting} nothing computes it.",
            f"Set control.stop_when or {knob}.",
        )
        return
    reported = dict(algorithm.reported(experiment))
    if condition.name in reported.get(condition.call, ()) or _is_of_routers(condition, algorithm, experiment):
        return
    lacking = f"is a metric of a call {condition.call!r}, but the calls are {', '.join(reported)}"
    if condition.call in reported:
        reported = {condition.call: reported[condition.call]}
        lacking = f"is no statistic of {condition.call}, which reports {', '.join(*reported.values()) or 'none'}"
    known = [f"{call}/{name}" for call, names in reported.items() for name in names]
    near = difflib.get_close_matches(condition.metric, known, n=1)
    probably = f", probably to {near[0]}" if near else ""
    yield Problem(
        ("control.stop_when",),
        f"control.stop_when = {condition.metric!r} {lacking}.",
        f"Set control.stop_when{probably}.",
    )


def _is_of_routers(condition: Condition, algorithm: Algorithm[Any], experiment: ExperimentConfig) -> bool:
    """Whether a model with experts reports it; of another the run itself tells that it lacks it."""
    trained = {call.name for call in algorithm.calls(experiment) if call.kind == "train_step"}
    return condition.call in trained and condition.name in ROUTER_STATISTICS
