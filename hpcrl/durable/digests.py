"""The digest of what shards hold, as the engine that saved them has it, and what the run says of it. Without torch."""

import hashlib
import json
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hpcrl.durable.checkpoints import READERS, Manifest
from hpcrl.durable.files import DamagedFileError
from hpcrl.durable.history import History
from hpcrl.durable.journal import Trained
from hpcrl.durable.shards import Shard, ShardFile
from hpcrl.families.places import Span, sliced
from hpcrl.ops.checksum import MASK, checksum_of

FIRST = "master"
"""The array whose checksum a digest begins with; the others follow by name."""
PIECE = 256 << 10
"""Elements of an array that a reader holds at once."""


def digest_of(shards: Sequence[ShardFile]) -> str:
    """The checksums of all arrays over all shards of a role, the number of updates, and what the algorithm remembers.

    Holds a few megabytes. Raises DamagedFileError where a shard lacks some of what it says it has.
    """
    names = sorted(shards[0].arrays, key=lambda name: (name != FIRST, name))
    sums = dict.fromkeys(names, 0)
    with ThreadPoolExecutor(READERS) as pool:
        tasks = [(name, pool.submit(_checksum, shard, name)) for shard in shards for name in names]
        for name, task in tasks:
            sums[name] = (sums[name] + task.result()) & MASK
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


def _checksum(shard: Shard, name: str) -> int:
    """Of one array of a shard, each element of which is read once."""
    total = 0
    for start, stop, here in _pieces([span for span in shard.spans if span.owned]):
        total += checksum_of(shard.read(name, start, stop), here)
    return total & MASK


def _pieces(spans: Sequence[Span]) -> Iterator[tuple[int, int, tuple[Span, ...]]]:
    """Pieces that cover a buffer in order, each with what of the spans lies in it, counted from its start."""
    waiting, active = deque(sorted(spans, key=lambda span: span.offset)), list[Span]()
    for start in range(0, end := max((span.stop for span in spans), default=0), PIECE):
        stop = min(end, start + PIECE)
        while waiting and waiting[0].offset < stop:
            active.append(waiting.popleft())
        yield start, stop, sliced(active, start, stop)
        active = [span for span in active if span.stop > stop]
