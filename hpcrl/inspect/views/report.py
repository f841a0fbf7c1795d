"""All views of a run together, as they are on one page."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from hpcrl.errors import ConfigurationError, DataError
from hpcrl.inspect.archives import Archives, Sample
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.views.memory import Memory, memory
from hpcrl.inspect.views.resources import Resources, resources
from hpcrl.inspect.views.settings import Settings, settings_of
from hpcrl.inspect.views.steps import Steps, steps
from hpcrl.inspect.views.stragglers import Stragglers, stragglers
from hpcrl.inspect.views.summary import Summary, summary
from hpcrl.inspect.views.timeline import Timeline, timeline
from hpcrl.inspect.views.why import Why, why
from hpcrl.inspect.worth_a_look import worth_a_look

SAMPLES_SHOWN = 5
"""The worst of a step, and as many of the best."""
STEPS_SHOWN = 500
REWARD = "reward"


class Ends(msgspec.Struct, frozen=True):
    """The worst and the best samples by reward of the newest step that has some; `lacks` says why there are none."""

    step: int | None
    of: int
    """Samples of that step that are kept."""
    by_data: dict[str, int]
    """How many of them are of which data set."""
    failed: list[Sample]
    """Some whose reward raised, so that they have none."""
    worst: list[Sample]
    best: list[Sample]
    lacks: str = ""


class Report(msgspec.Struct, frozen=True):
    """The JSON of `hpcrl inspect RUN report --json`. `timeline` is that of the last steps, None before one has closed;
    `steps` are the newest."""

    summary: Summary
    why: Why
    timeline: Timeline | None
    worth_a_look: list[str]
    """Sentences on metrics that are out of their usual range."""
    samples: Ends
    settings: Settings
    steps: Steps
    memory: Memory
    resources: Resources
    stragglers: Stragglers


def report(reader: RunReader) -> Report:
    every = steps(reader)
    try:
        last = timeline(reader)
    except ConfigurationError:
        last = None
    return Report(
        summary=summary(reader),
        why=why(reader),
        timeline=last,
        worth_a_look=worth_a_look(reader.rows()),
        samples=_ends(reader),
        settings=settings_of(reader),
        steps=msgspec.structs.replace(every, steps=every.steps[-STEPS_SHOWN:]),
        memory=memory(reader),
        resources=resources(reader),
        stragglers=stragglers(reader),
    )


def _ends(reader: RunReader) -> Ends:
    archives = Archives(reader.run)
    for step in archives.newest_first():
        try:
            every = list(archives.samples(step))
        except DataError as error:
            return Ends(step, 0, {}, [], [], [], str(error))
        failed = [sample for sample in every if sample.error]
        order = sorted((it for it in every if REWARD in it.figures), key=lambda it: it.figures[REWARD])
        if order or failed:
            counts = dict(Counter(it.data_set for it in every))
            return Ends(step, len(every), counts, failed[:SAMPLES_SHOWN], order[:SAMPLES_SHOWN], _best(order))
    return Ends(None, 0, {}, [], [], [], "No step has kept a sample that has a reward.")


def _best(order: Sequence[Sample]) -> list[Sample]:
    """The best first; none that is among the worst, or no better than all of them."""
    worst, others = order[:SAMPLES_SHOWN], order[SAMPLES_SHOWN:]
    better = [it for it in others if it.figures[REWARD] > worst[-1].figures[REWARD]]
    return better[-SAMPLES_SHOWN:][::-1]
