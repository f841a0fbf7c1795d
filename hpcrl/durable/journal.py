"""The write-ahead log of a run: its typed events, and how a line proves that it is whole.

A line is `{"crc":"xxxxxxxx","event":{…}}`, the CRC-32 being of the event's bytes. Knows neither where journals lie nor
which of them are believed.
"""

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpcrl.durable.append_log import AppendLog
from hpcrl.durable.exact_json import ExactJSON
from hpcrl.durable.files import FileRef, Files
from hpcrl.durable.made import Made
from hpcrl.durable.once import Once, Returned, SetAside, Turn

Ids = tuple[str, ...]
Cuts = tuple[tuple[int, ...], ...]
"""Groups of samples, each as positions in a list of ids."""
Stats = dict[str, tuple[float, ...]]
"""name → (total, weight), or (total, weight, what rounding has left out of the total)."""


class _Event(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower):
    """What happened, as the master says it. Everything in it is JSON; floats keep every bit, NaN and infinity too."""


class _Drawn(_Event, frozen=True):
    """What lines have in common that make a step: their samples, and how many parts each call is made in on these,
    which stays so however many workers execute them later; a train_step is one, and is shared out when it is sent.

    `partitions` maps a data-parallel size, as text, to the samples of each part, as positions in `ids`. `cursor` counts
    the rows, from the run's start, that are used up once these samples are taken.
    """

    step: int
    ids: Ids
    cursor: int
    calls: dict[str, int]
    partitions: dict[str, Cuts]


class Opened(_Drawn, frozen=True):
    """A step begins. All that its calls need is fixed here, before any of them is sent.

    `minibatches` are positions in `ids`, those of `eval_partitions` in `eval_ids`.

    Where `chooses`, this is round 0 of a step that decides by what was recorded which samples it trains on: `calls` are
    those on all rows drawn, there are no minibatches yet, and `Extended` and `Chosen` follow. Only all these lines
    together (`durable.step_lines`) say what the step is made of. `empty_before` is how many steps right before this one
    chose nothing.

    Where it is `scripted`, the run's script asks for its calls: each has a line, `Called`.

    `begun` are those of `ids` that go on from the step before, and the step in which each was begun.
    """

    epoch: int
    minibatches: Cuts
    seed: int
    checkpoint: bool
    export: bool
    eval_ids: Ids = ()
    eval_partitions: dict[str, Cuts] = {}
    chooses: bool = False
    empty_before: int = 0
    scripted: bool = False
    begun: dict[str, int] = {}


class Extended(_Drawn, frozen=True):
    """A step that chooses has drawn more rows: its round `round`, from 1. Fields are as in `Opened`, for this round's
    samples alone; parts of a call are numbered on from round to round. Where calls are made in rounds, those `going` on
    are of it too, before `ids`, and each call has another name.
    """

    round: int
    going: Ids = ()


class Carried(msgspec.Struct, frozen=True):
    """Samples that a step leaves to the next one, as a part of a call has made them. They were begun in step `since`; 0
    where nothing of them is kept, and they are begun anew."""

    ids: Ids
    since: int
    call: str
    part: int


class Chosen(_Drawn, frozen=True):
    """A step has chosen the samples `ids`, in data order, and draws no more.

    Fields are as in `Opened`, for these samples: `calls` are those on chosen rows, and those of the step's evaluation.
    `dropped` are the groups, `<row>@<epoch>`, that it drew besides. Without samples, `calls` are those that need none:
    a train_step then makes no update, and says so in its line. `carried` are those that it leaves to the next step,
    first the samples of so many groups that are `whole`.
    """

    minibatches: Cuts
    dropped: Ids
    carried: tuple[Carried, ...] = ()
    whole: int = 0


class Called(_Event, frozen=True):
    """The script has asked for a call, as its `number`-th ask in this step, on the samples `ids`; `at` is where.
    `call` is one of the recipe, with `_2` behind it the second time in a step. `inputs`: key of the graph → who made
    its rows, along the ids. `parts`, `partitions`, `minibatches` are as in `Opened`, positions in `ids`. It reads, or
    makes, the `version` of its role's parameters. `arguments` are a computation's, as JSON.
    """

    step: int
    number: int
    call: str
    ids: Ids
    inputs: dict[str, tuple[Made, ...]]
    parts: int
    partitions: dict[str, Cuts]
    minibatches: Cuts
    version: int
    settings: int
    arguments: str = ""
    at: str = ""

    @property
    def calls(self) -> dict[str, int]:
        """As in `Opened`."""
        return {self.call: self.parts}


class Done(_Event, frozen=True):
    """One part of a call is finished: its outputs are in `spill`, in a group of that file if `group` is set.

    `settings` is the version of the run's settings that it was made under; made again, it runs under it again. `scores`
    are those of the part's samples, in their order, where the step chooses by them; NaN where a sample has none.
    `version` counts the changes that the parameters had which it read; 0 where nothing changes its role.
    """

    step: int
    call: str
    part: int
    spill: FileRef
    group: str | None
    stats: Stats
    settings: int = 0
    scores: tuple[float, ...] = ()
    version: int = 0


class Numerics(msgspec.Struct, frozen=True):
    """What the bits of a train_step depend on besides its inputs: how many workers, on what, with how many threads.

    `hardware` and `software` have an entry for each worker, in the order of the role's ranks: sums are added up in it.
    `inexact` are the operations that have no deterministic variant there: with one, no two executions need agree.
    `micro_batch_tokens` are those of the role, 0 where it has none, `layout` and `backend` its too; `deterministic` is
    the run's setting. `neighbours` are how many ranks of a group add up among themselves on a node, before nodes do.
    `attention` are each worker's kernels of attention, by name; nothing of a role that has none.
    """

    workers: int
    hardware: tuple[str, ...]
    software: tuple[str, ...]
    threads: int
    inexact: tuple[str, ...] = ()
    micro_batch_tokens: int = 0
    deterministic: bool = True
    layout: str = ""
    backend: str = ""
    neighbours: tuple[int, ...] = ()
    attention: tuple[str, ...] = ()


class Trained(_Event, frozen=True):
    """A train_step is finished; `record` is what a replay follows, its digest included.

    `before` is the digest of the parameters that it began with, "" for the base weights. A replay with the same
    `numerics` from the same parameters gives the same bits; any other gives nearly the same. `settings` is the version
    of the run's settings that it was made under, and that a replay runs under. `version` counts the role's changes with
    this one: replays go by it. `shown` are the files, one of each part, with the rows that it shows for the step's
    archive. A replay that writes what is missing of them has the same line again, with its files.
    """

    step: int
    call: str
    record: dict[str, Any]
    stats: Stats
    before: str
    numerics: Numerics
    settings: int = 0
    version: int = 0
    shown: tuple[FileRef, ...] = ()


class Blended(Trained, frozen=True):
    """A role's parameters were blended with another's; `source` is the digest of those. Else as of a train_step."""

    source: str = ""


class Closed(_Event, frozen=True):
    """All lines of a step are written; `metrics` is its row. Of a scripted one, `turn` is how it ended."""

    step: int
    metrics: dict[str, int | float]
    turn: Turn | None = None


class Compacted(_Event, frozen=True):
    """All spills of a closed step are in one file, a group per part (`spills.group_name`)."""

    step: int
    spill: FileRef


class Checkpointed(_Event, frozen=True):
    """Every trained role is on disk as it was right after this step."""

    step: int
    manifest: FileRef


class Damaged(_Event, frozen=True):
    """What workers loaded of a step's checkpoint (`manifest`) is not what was saved, but `what`: it counts no more."""

    step: int
    manifest: FileRef
    what: str


class Exported(_Event, frozen=True):
    """A role was written in Hugging Face format; `path` is relative to the run directory."""

    step: int
    role: str
    path: str


class Archived(_Event, frozen=True):
    """What is kept of a closed step's samples is in its archive, which stays; None where nothing of them is kept.
    `lost` says which files could not be read that it is made of."""

    step: int
    samples: FileRef | None = None
    lost: str = ""


class Pruned(_Event, frozen=True):
    """Spills and checkpoints of steps before this one were removed."""

    before_step: int


class Accepted(_Event, frozen=True):
    """The user let an input change; `fingerprint` is what it is from now on."""

    name: str
    fingerprint: str


class Stopped(_Event, frozen=True):
    """The attempt ended in good order."""

    reason: str


class Broken(_Event, frozen=True):
    """The attempt ended because something that the ranks of `group` do together broke while everybody was alive.

    It was operation `number` of the unit of work `what`. If it breaks once more the run ends.
    """

    what: str
    group: tuple[int, ...]
    operation: str
    number: int


class Forked(_Event, frozen=True):
    """The run begins from the checkpoint of a step of another, whose directory is `parent`, made under its version
    `settings`."""

    parent: str
    step: int
    settings: int

    def __str__(self) -> str:
        return f"{self.parent}, step {self.step}"


class Prefix(msgspec.Struct, frozen=True):
    """How much of an attempt's journal is believed: its first `size` bytes, of this CRC-32."""

    attempt: int
    size: int
    crc32: int


class Adopted(_Event, frozen=True):
    """What an attempt believes of older ones, and under which names it keeps their files.

    `prefixes` are in the order of the attempts. `files` maps a name in their journals to the adopting attempt's own.
    Published as `adopted.json`; the first line of the attempt's journal repeats it, should that file get damaged.
    """

    prefixes: tuple[Prefix, ...]
    files: dict[str, str]


Event = (
    Opened
    | Extended
    | Chosen
    | Called
    | Once
    | SetAside
    | Done
    | Returned
    | Trained
    | Blended
    | Closed
    | Compacted
    | Checkpointed
    | Damaged
    | Exported
    | Archived
    | Pruned
    | Accepted
    | Stopped
    | Broken
    | Forked
    | Adopted
)

_HEAD = b'{"crc":"'
_MIDDLE = b'","event":'
_TAIL = b"}\n"
_JSON = ExactJSON[Event](Event)
_EVENT_START = len(_HEAD) + 8 + len(_MIDDLE)


class Journal:
    """The journal of one attempt while it is being written, by one thread of one process."""

    def __init__(self, log: AppendLog) -> None:
        self._log = log

    def append(self, events: Sequence[Event]) -> list[bytes]:
        """Make the events durable, in this order, with one write and one fsync. Their lines.

        Raises TypeError or msgspec.ValidationError for an event that could not be read back: nothing is written then.
        """
        lines = [encode_line(event) for event in events]
        self._log.append(lines)
        return lines

    def close(self) -> None:
        self._log.close()


def open_journal(files: Files, path: Path) -> Journal:
    """Begin an attempt's journal. FileExistsError if somebody has begun it before."""
    return Journal(files.open_log(path, "journal"))


def encode_line(event: Event) -> bytes:
    """The event's line. It is decoded once more: a line that cannot be read would hide all that come behind it."""
    payload = _JSON.encode(event)
    return b"%b%08x%b%b%b" % (_HEAD, zlib.crc32(payload), _MIDDLE, payload, _TAIL)


def decode_line(line: bytes) -> Event | None:
    """The event of a whole line, newline included; None if it is anything else."""
    payload = line[_EVENT_START : -len(_TAIL)]
    if line != b"%b%08x%b%b%b" % (_HEAD, zlib.crc32(payload), _MIDDLE, payload, _TAIL):
        return None
    try:
        return _JSON.decode(payload)
    except (ValueError, msgspec.ValidationError):
        return None


def parse(data: bytes) -> Iterator[tuple[int, Event | None]]:
    """The lines of a journal: where each ends, and its event or None where it is damaged.

    A last line without its newline was never finished; it is not a line.
    """
    start = 0
    while (end := data.find(b"\n", start) + 1) > 0:
        yield end, decode_line(data[start:end])
        start = end
