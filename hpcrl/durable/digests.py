"""The digest of what shards hold, as the engine that saved them has it, and what the run says of it. Without torch."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hpcrl.durable.checkpoints import READERS, Manifest
from hpcrl.durable.files import DamagedFileError
from hpcrl.durable.history import History
from hpcrl.durable.journal import Trained
from hpcrl.durable.shards import Shard, ShardFile
from hpcrl.families.places import pieces, sliced
from hpcrl.ops.checksum import MASK, checksums_of

FIRST = "master"
"""The array whose checksum a digest begins with; the others follow by name."""
PIECE = 256 << 10
"""Elements of an array that a reader holds at once: they stay in a core's cache until they are summed."""
SHARE = 64 * PIECE
"""Elements of each array that a reader sums before it takes others."""


def digest_of(shards: Sequence[ShardFile]) -> str:
    """The checksums of all arrays over all shards of a role, the number of updates, and what the algorithm remembers.

    Holds a few megabytes. Raises DamagedFileError where a shard lacks some of what it says it has.
    """
    names = sorted(shards[0].arrays, key=lambda name: (name != FIRST, name))
    sums = dict.fromkeys(names, 0)
    with ThreadPoolExecutor(READERS) as pool:
        tasks = [
            pool.submit(_checksums, shard, names, start, start + SHARE)
            for shard in shards
            for start in range(0, max((span.stop for span in shard.spans), default=0), SHARE)
        ]
        for task in tasks:
            for name, found in zip(names, task.result(), strict=True):
                sums[name] = (sums[name] + found) & MASK
    summed = "".join(f"{sums[name]:016x}" for name in names) + f"{shards[0].state['updates']:08x}"
    [digest, *others] = {with_memory(summed, shard.state["algorithm"]) for shard in shards}
    if others:
        raise DamagedFileError(f"{shards[0].path} and others do not remember the same")
    return digest


def with_memory(digest: str, memory: Mapping[str, Any]) -> str:
    """The digest of what a role's engine has, and of what its algorithm remembers, as JSON would give it back."""
    if not memory:
        return digest
    text = json.dumps(json.loads(json.dumps(memory)), sort_keys=True)
    return digest + hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def saved_digest(history: History, manifest: Manifest, role: str, calls: Collection[str]) -> str | None:
    """What the run says of a role in a checkpoint, which `calls` change; None where no line tells.

    The line of the role's last train_step tells, and the manifest of what was saved. They differ where a later attempt
    has trained the step again, with rounding that the run has judged, before it saved it.

    Raises:
        DamagedFileError: the two differ, and no later attempt has saved the checkpoint.
    """
    lines = [(line.attempt, line.event) for line in history.lines if isinstance(line.event, Trained)]
    known = [(event.step, event.version, attempt, event) for attempt, event in lines if event.call in calls]
    known = [each for each in known if each[0] <= manifest.step]
    saved = manifest.digests.get(role, "")
    if not known:
        return saved or None
    *_, attempt, trained = max(known, key=lambda each: each[:3])
    told = str(trained.record["digest"])
    if saved in ("", told):
        return told
    if manifest.attempt <= attempt:
        raise DamagedFileError(f"{role} was saved with digest {saved}, and step {trained.step} had left {told}")
    return saved


def _checksums(shard: Shard, names: Sequence[str], start: int, stop: int) -> list[int]:
    """Of all arrays of a shard, as far as their elements lie there; each is read once."""
    totals = [0] * len(names)
    for begin, end, here in pieces(sliced([span for span in shard.spans if span.owned], start, stop), PIECE):
        read = (shard.read(name, start + begin, start + end) for name in names)
        totals = [total + found for total, found in zip(totals, checksums_of(read, here, end - begin), strict=True)]
    return totals
