"""The stations that a sample and a request pass in a run, and a fault hook that notes every passage of them.

The hook wraps each station's function in the master and the workers of a run. Each process notes passages in a file.
"""

import contextlib
import functools
import importlib
import inspect
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import msgspec

from hpcrl.data.samples import SampleMeta
from hpcrl.durable.journal import Done, Trained
from hpcrl.wire.messages import Reply, Syn

Fact = dict[str, Any]
Facts = Iterator[Fact]
Arguments = Mapping[str, Any]
"""Of a call, by parameter."""


@dataclass(frozen=True)
class Station:
    """A function, by its path in the package, and what its arguments and its result say of who passes: maybe nobody.

    A station is passed when its function is called; where the function makes what is told of, when it returns.
    """

    function: str
    facts: Callable[[Arguments, Any], Facts]
    passed: Literal["called", "returned"] = "called"


def _chosen(_: Arguments, batch: Any) -> Facts:
    yield {"ids": batch.ids}


def _opened(_: Arguments, opened: Any) -> Facts:
    if opened is not None:
        yield {"step": opened.step, "ids": opened.ids}


def _cut(arguments: Arguments, tasks: Any) -> Facts:
    for task in tasks:
        parts = arguments["parts"][task.unit.call]
        yield {**_unit(task.unit), "ids": list(chain(*parts)) if task.changes else parts[task.unit.part]}


def _requested(arguments: Arguments, _: Any) -> Facts:
    request = arguments["request"]
    holders = [type(holder).__name__ for source in request.sources for holder in source.holders]
    yield {**_unit(request), "request": request.id, "ids": request.ids, "holders": holders}


def _synced(arguments: Arguments, _: Any) -> Facts:
    if isinstance(body := arguments["body"], Syn):
        yield {"request": body.request, "rank": body.rank}


def _acked(arguments: Arguments, _: Any) -> Facts:
    yield {"request": arguments["request"]}


def _executed(arguments: Arguments, _: Any) -> Facts:
    if not (work := arguments["work"]).minibatches:
        yield {**_unit(work), "ids": work.batch.ids}


def _trained(arguments: Arguments, _: Any) -> Facts:
    if (work := arguments["work"]).minibatches:
        yield {**_unit(work), "ids": work.batch.ids}


def _kept(arguments: Arguments, _: Any) -> Facts:
    sample = arguments["sample"]
    yield {"step": arguments["step"], "call": arguments["call"], "ids": sample.ids, **_meta(sample.meta)}


def _replied(arguments: Arguments, _: Any) -> Facts:
    if isinstance(message := arguments["message"], Reply):
        yield {"request": message.request, "rank": message.rank, **_meta(message.meta)}


def _heard(arguments: Arguments, _: Any) -> Facts:
    if isinstance(body := arguments["body"], Reply):
        yield {"request": body.request, "rank": body.rank, **_meta(body.meta)}


def _fetched(arguments: Arguments, answer: Any) -> Facts:
    fetch = arguments["fetch"]
    yield {"step": fetch.step, "call": fetch.call, "ids": fetch.ids, **_meta(answer[0].meta)}


def _spilled(arguments: Arguments, spill: Any) -> Facts:
    yield {"file": spill.name, "ids": arguments["sample"].ids, **_meta(arguments["sample"].meta)}


def _written(arguments: Arguments, _: Any) -> Facts:
    for event in arguments["events"]:
        if isinstance(event, Done):
            yield {**_unit(event), "file": event.spill.name}
        elif isinstance(event, Trained):
            yield {"step": event.step, "call": event.call}


def _closed(arguments: Arguments, _: Any) -> Facts:
    yield {"step": arguments["lines"].step}


def _archived(arguments: Arguments, archive: Any) -> Facts:
    yield {"step": arguments["about"].step, "file": archive.name}


def _compacted(arguments: Arguments, spill: Any) -> Facts:
    yield {"step": arguments["step"], "file": spill.name}


def _forgotten(arguments: Arguments, _: Any) -> Facts:
    yield {"before": arguments["before_step"]}


def _unit(of: Any) -> Fact:
    return {"step": of.step, "call": of.call, "part": of.part}


def _meta(meta: SampleMeta | None) -> Fact:
    """What metadata is, which type it has and, in this process, which object it is."""
    if meta is None:
        return {"meta": None}
    kind = f"{type(meta).__module__}.{type(meta).__qualname__}"
    return {"meta": msgspec.to_builtins(meta), "meta_type": kind, "meta_object": id(meta)}


STATIONS: Mapping[str, Station] = {
    "row": Station("data.order.SampleOrder.batch_at", _chosen, "returned"),
    "opened": Station("master.stepping.StepSource.open", _opened, "returned"),
    "part": Station("dataflow.units.units_of", _cut, "returned"),
    "request": Station("workers.inputs.Inputs.gather", _requested),
    "syn": Station("master.dispatcher.Dispatcher.hear", _synced),
    "ack": Station("workers.inputs.Inputs.take", _acked),
    "execute": Station("algos.host.TorchHost.execute", _executed),
    "memory": Station("workers.sample_store.SampleStore.put", _kept, "returned"),
    "reply": Station("workers.mailbox.Mailbox.post", _replied),
    "heard": Station("master.dispatcher.Dispatcher.hear", _heard),
    "fetch": Station("workers.row_server.RowServer.serve", _fetched, "returned"),
    "spill": Station("durable.spills.write_spill", _spilled, "returned"),
    "train step": Station("algos.host.TorchHost.execute", _trained),
    "line": Station("durable.journal.Journal.append", _written, "returned"),
    "closed": Station("master.attempt_files.AttemptFiles.closed", _closed),
    "archived": Station("durable.archives.write_archive", _archived, "returned"),
    "compacted": Station("durable.retention.compact_step", _compacted, "returned"),
    "forgotten": Station("workers.sample_store.SampleStore.forget", _forgotten),
}


@dataclass
class Following:
    """A fault hook: notes all passages of stations in `folder`, a file per process."""

    folder: Path
    me: str = ""

    def __call__(self, point: str) -> None:
        if point.startswith("as "):
            self.me = point.removeprefix("as ")
        # What runs next imports nothing more: in a worker all is there when it is named, in the master later.
        if point.startswith(("as worker-", "as housekeeper-")) or point == "master.start":
            for name, station in STATIONS.items():
                _wrap(station, functools.partial(self._note, name, station))

    def _note(self, name: str, station: Station, at: float, arguments: Arguments, result: Any) -> None:
        for fact in station.facts(arguments, result):
            line = json.dumps({"station": name, "who": self.me, "at": at, **fact}) + "\n"
            with (self.folder / f"{self.me}.passages").open("a") as file:
                file.write(line)


def passages(folder: Path) -> list[Fact]:
    """All that was noted, by time: of one machine, on which all processes have one monotonic clock."""
    lines = [line for path in folder.glob("*.passages") for line in path.read_text().splitlines()]
    return sorted(map(json.loads, lines), key=lambda fact: fact["at"])


def _wrap(station: Station, note: Callable[[float, Arguments, Any], None]) -> None:
    """Put a function that tells of each call in the place of the station's, wherever this process has it."""
    function = resolve(station.function)
    signature = inspect.signature(function)

    @functools.wraps(function)
    def telling(*arguments: Any, **named: Any) -> Any:
        called = time.monotonic()
        result = function(*arguments, **named)
        at = called if station.passed == "called" else time.monotonic()
        note(at, signature.bind(*arguments, **named).arguments, result)
        return result

    places: list[Any] = [module for name, module in sys.modules.items() if name.startswith("hpcrl.")]
    owner = station.function.rpartition(".")[0]
    if inspect.isclass(found := resolve(owner)):
        places = [found]
    for place in places:
        for name in [name for name, value in vars(place).items() if value is function]:
            setattr(place, name, telling)


def resolve(path: str) -> Any:
    """What a dotted path names within the package: a module, or something in it."""
    names = path.split(".")
    for length in range(len(names), 0, -1):
        with contextlib.suppress(ModuleNotFoundError):
            found = importlib.import_module(".".join(["hpcrl", *names[:length]]))
            return functools.reduce(getattr, names[length:], found)
    raise AttributeError(f"there is no hpcrl.{path}")
