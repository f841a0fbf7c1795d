"""Checksums of inputs by the stamps that their files had, so that nobody reads a large file again to know it.

`inputs/000.json`, `001.json`, …, written by whoever has read files. Nothing depends on them: what is lost or damaged is
read again.
"""

from collections.abc import Collection, Iterator, Mapping

import msgspec

from hpcrl.data.contents import Contents, Seen, Told, nobody
from hpcrl.data.inputs import Inputs, Share, changed, differences
from hpcrl.durable.numbers import publish_next
from hpcrl.durable.rundir import RunDirectory


def read_seen(run: RunDirectory) -> Iterator[Seen]:
    """What is known."""
    for name in run.files.listing(run.inputs):
        try:
            yield from msgspec.json.decode(run.files.read(run.inputs / name), type=tuple[Seen, ...])
        except (OSError, msgspec.DecodeError):
            continue


def add_seen(run: RunDirectory, read: Collection[Seen]) -> None:
    """Write down what was read."""
    if not read:
        return
    data = msgspec.json.encode(read)
    names = run.files.listing(run.inputs)
    publish_next(names, lambda number: run.files.publish(run.inputs_json(number), data, "inputs"))


def refuse_changed(
    run: RunDirectory,
    expected: Mapping[str, str],
    inputs: Inputs,
    share: Share | None = None,
    told: Told = nobody,
) -> None:
    """Raise DataError where files are not what their fingerprints say, or cannot be read."""
    contents = Contents(read_seen(run), told)
    differing = differences(expected, inputs, contents, share)
    add_seen(run, contents.read)
    if differing:
        raise changed(differing, run.root)
