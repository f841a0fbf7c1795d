"""`hpcrl profile --from RUN`: a profile out of what the calls of runs have taken, instead of a run that measures.

A run's rows of costs say how long passes, updates, moves and releases took on a worker. How a pass is shared between
the parts of a model they do not say: that is as other rates have it (`hpcrl.placement.profile_fit`).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import msgspec

from hpcrl.config.changes import with_nodes
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Trained
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, DataError
from hpcrl.events import WorkersReady
from hpcrl.inspect.entries import EntryTail
from hpcrl.inspect.words import counted
from hpcrl.launch.calibrating import calibrated, like, ran
from hpcrl.launch.calls_observed import Seen, look
from hpcrl.launch.profiling import PROFILE, fixed_s
from hpcrl.placement.data_sheets import CPU_CORE, is_named, rates_of_gpu
from hpcrl.placement.lengths import lengths_of_run
from hpcrl.placement.model_costs import block_shape, head_shape
from hpcrl.placement.profile_fit import Fits, faster, fitted, fitted_link, pieces_fitted
from hpcrl.placement.profile_rates import UNKNOWN_GPU
from hpcrl.placement.profile_tasks import ProfiledModel, profiled_models
from hpcrl.placement.rates import Link, Links, Ran, Rates
from hpcrl.placement.search_inputs import lengths_asked
from hpcrl.placement.workload import workload_of
from hpcrl.recipes.algorithm import experiment_from

TEXTS = 256
"""Of each run, so many lengths are kept: they tell of all."""


class Profiled(NamedTuple):
    """A profile, and what of it the runs did not tell, in sentences."""

    rates: Rates
    lacks: tuple[str, ...]


class _Run(NamedTuple):
    """What a run computed on and with; `software` is empty where it trained nothing."""

    run: RunDirectory
    device: str
    software: str
    models: dict[str, ProfiledModel]
    left_out: list[str]


def profile_from(runs: Sequence[RunDirectory], base: Rates | None = None) -> Profiled:
    """Of runs of one configuration's models on one kind of worker. `base` says in which proportion parts are; else the
    device's data sheet does. Raises ConfigurationError where runs differ or measured nothing, DataError."""
    known = [_known(run) for run in runs]
    for one, other in pairwise(known):
        if differs := next(_differences(one, other), ""):
            raise ConfigurationError(
                [f"{one.run.root} and {other.run.root} make no profile together: {differs}."],
                "Make one of each, or leave one out.",
            )
    first = known[0]
    if not first.models:
        raise ConfigurationError([f"{first.run.root} has no model whose parts could be told.", *first.left_out])
    base = _base(first, base)
    seen = Seen()
    for run in runs:
        ran(run)
        look(run, base, seen)
    rates = _rates(known, seen, base)
    return Profiled(_calibrated(runs, rates, seen), (*first.left_out, *_lacks(seen)))


def _known(run: RunDirectory) -> _Run:
    experiment = experiment_from(run.configuration())
    if experiment.algorithm == PROFILE:
        raise ConfigurationError(
            [f"{run.root} is a run of `hpcrl profile`, whose file is its profile."],
            "Name runs that trained or generated.",
        )
    experiment = like(with_nodes(experiment, experiment.cluster.most_nodes), run)
    models, left_out = profiled_models(experiment, workload_of(experiment, lengths_asked(experiment)))
    ready = [entry for number in run.numbers() if (entry := _ready(run, number)) is not None]
    found = {hardware for entry in ready for hardware in entry.hardware}
    if len(found) > 1:
        raise ConfigurationError(
            [f"{run.root} computed on several kinds of devices: {', '.join(sorted(found))}."],
            "Name runs that had one kind.",
        )
    device, kind = next(iter(found), ""), experiment.cluster.device
    is_cpu = kind == "cpu" or (
        kind == "auto" and any(entry.speeds for entry in ready)
    )  # of a CPU alone there is a trial
    return _Run(run, f"cpu {device}".strip() if is_cpu else device, _software(run), models, left_out)


def _ready(run: RunDirectory, number: int) -> WorkersReady | None:
    """What workers said when they were ready."""
    events = (entry.event for entry in EntryTail(run.events(number)).each())
    return next((event for event in events if isinstance(event, WorkersReady)), None)


def _software(run: RunDirectory) -> str:
    """The version of torch of its newest train_step."""
    history = read_history(run, recent=1)
    found = [line.event.numerics for line in history.lines if isinstance(line.event, Trained)]
    if not found and history.older is not None:
        found = [it.numerics for it in history.older.lines.numerics.values()]
    return found[-1].software[0].partition(",")[0] if found and found[-1].software else ""


def _differences(one: _Run, other: _Run) -> Iterator[str]:
    if one.device != other.device:
        yield f"one computed on {one.device}, the other on {other.device}"
    if one.software and other.software and one.software != other.software:
        yield f"one had {one.software}, the other {other.software}"
    shapes = [{(it.model.family, shape) for it in run.models.values() for shape in _shapes(it)} for run in (one, other)]
    if shapes[0] != shapes[1]:
        texts = ["; ".join(sorted(" ".join(it) for it in own)) for own in shapes]
        yield f"one had models of {texts[0] or 'no known shape'}, the other of {texts[1] or 'no known shape'}"


def _shapes(model: ProfiledModel) -> Iterator[str]:
    yield f"{block_shape(model.model)}, {head_shape(model.model)}, {model.dtype}"


def _base(run: _Run, given: Rates | None) -> Rates:
    is_cpu = run.device.startswith("cpu")
    if given is not None:
        if (given.device == CPU_CORE.device) != is_cpu or not _are_alike(given.device, run.device):
            raise ConfigurationError(
                [f"--profile is of {given.device}, but {run.run.root} computed on {run.device}."],
                "Give a profile of the device that the runs had, or leave --profile out.",
            )
        return given
    found = CPU_CORE if is_cpu else rates_of_gpu(run.device) or rates_of_gpu(UNKNOWN_GPU)
    assert found is not None, UNKNOWN_GPU
    return found


def _are_alike(one: str, other: str) -> bool:
    return is_named(one, other) and is_named(other, one)


def _rates(known: Sequence[_Run], seen: Seen, base: Rates) -> Rates:
    """What was seen, in the place of the base's."""
    fits = Fits({key: fitted(found) for key, found in seen.passes.items() if found})
    models = [model for run in known for model in run.models.values()]
    names = ", ".join(run.run.root.name for run in known)
    call_ns = round(1e9 * median(fixed_s(run.run) for run in known))
    return msgspec.structs.replace(
        base,
        source=f"taken from {names}; parts of models in proportion as by {base.source}",
        device=base.device if known[0].device.startswith("cpu") else known[0].device,
        software=next((run.software for run in known if run.software), ""),
        measured=pieces_fitted(models, fits, base),
        fixed=msgspec.structs.replace(base.fixed, call_ns=call_ns),
        near=_links(seen, "near", base.near),
        far=_links(seen, "far", base.far),
        host=_link(seen, "host", base.host),
        disk=fitted_link(seen.disk, base.disk) if seen.disk else base.disk,
        ran=Ran(texts=tuple(_texts(run.run for run in known))),
    )


def _texts(runs: Iterable[RunDirectory]) -> Iterator[tuple[int, int]]:
    """How long a few texts were, of runs that kept some."""
    for run in runs:
        with suppress(DataError):
            prompts, responses = lengths_of_run(run.samples).drawn(TEXTS, 1)
            yield from zip(prompts.tolist(), responses.tolist(), strict=True)


def _links(seen: Seen, side: str, base: Links) -> Links:
    alone = None if base.alone is None else _link(seen, f"{side}_send", base.alone)
    return Links(_link(seen, f"{side}_exchange", base.exchange), _link(seen, f"{side}_send", base.send), alone)


def _link(seen: Seen, name: str, base: Link) -> Link:
    return faster(base, fitted(seen.links[name])) if seen.links.get(name) else base


def _calibrated(runs: Sequence[RunDirectory], rates: Rates, seen: Seen) -> Rates:
    """With what calls took of which no passes are known: those that nobody can reckon, and by how much others differ
    from what is reckoned of them now. The middle one of all runs."""
    found = [calibrated(run, rates).ran for run in runs]
    scales = {call for of in found for call in of.scales} - seen.whole
    calls = {call for of in found for call in of.calls}
    return msgspec.structs.replace(
        rates,
        ran=Ran(
            {call: round(median(of.calls[call] for of in found if call in of.calls)) for call in sorted(calls)},
            {call: median(of.scales[call] for of in found if call in of.scales) for call in sorted(scales)},
            rates.ran.texts,
        ),
    )


def _lacks(seen: Seen) -> Iterator[str]:
    """What counts as by the base, since no run told of it."""
    names = {"near_send": "moves within a node", "far_send": "moves between nodes", "host": "releases"}
    names |= {"near_exchange": "exchanges within a node", "far_exchange": "exchanges between nodes"}
    if missing := [said for name, said in names.items() if not seen.links.get(name)]:
        yield f"{', '.join(missing)}: no run made any, so they count as by the data sheet or --profile."
    told = sum(map(len, seen.passes.values()))
    yield f"{counted(told, 'measurement')} of passes counted." if told else "No call told of its passes."
