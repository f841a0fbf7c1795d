"""The rows in one worker's memory, by step, call, key and sample id. Shared by two threads; knows no files."""

import threading
from collections import defaultdict
from collections.abc import Sequence

from hpcrl.data.samples import SequenceSample


class SampleStore:
    """Owns rows until their step is forgotten. A row is written once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[tuple[int, str], dict[str, dict[str, SequenceSample]]] = defaultdict(lambda: defaultdict(dict))

    def put(self, step: int, call: str, sample: SequenceSample) -> None:
        """Remember all rows of `sample`, which `call` made in `step`."""
        with self._lock:
            for key in sample.keys:
                holder = sample.select_keys([key])
                self._rows[step, call][key].update(dict.fromkeys(sample.ids, holder))

    def take(self, step: int, call: str, ids: Sequence[str], keys: Sequence[str]) -> SequenceSample:
        """Rows `ids` of `keys`; KeyError names what is not here."""
        with self._lock:
            columns = {key: [self._rows[step, call][key].get(sample_id) for sample_id in ids] for key in keys}
        missing = [f"{key} of {ids[i]}" for key, rows in columns.items() for i, row in enumerate(rows) if row is None]
        if missing:
            raise KeyError(
                f"step {step} {call}: {', '.join(missing[:3])} and {max(0, len(missing) - 3)} more are not in memory"
            )
        merged = None
        for holders in columns.values():
            column = _column(ids, [holder for holder in holders if holder is not None])
            merged = column if merged is None else merged.merge(column)
        if merged is None:
            raise KeyError(f"step {step} {call}: no key was asked for")
        return merged

    def forget(self, before_step: int) -> None:
        """Drop the rows of all steps before this one."""
        with self._lock:
            for made in [made for made in self._rows if made[0] < before_step]:
                del self._rows[made]


def _column(ids: Sequence[str], holders: Sequence[SequenceSample]) -> SequenceSample:
    """Rows `ids` of one key, the i-th from `holders[i]`, in the order of `ids`."""
    distinct = {id(holder): holder for holder in holders}
    if len(distinct) == 1:
        holder = holders[0]
        return holder if holder.ids == tuple(ids) else holder.select(ids)
    by_holder: dict[int, list[str]] = defaultdict(list)
    for sample_id, holder in zip(ids, holders, strict=True):
        by_holder[id(holder)].append(sample_id)
    return SequenceSample.gather([distinct[h].select(rows) for h, rows in by_holder.items()]).select(ids)
