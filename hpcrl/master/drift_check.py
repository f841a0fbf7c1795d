"""Whether all workers of a role hold the same parameters, replicas those of home, and a replay those of the first time.

Owns the digests of parameters. Knows neither messages nor files; `replay` says what explains a difference.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from hpcrl.dataflow.tasks import Unit, Version
from hpcrl.durable.journal import Numerics, Stats, Trained
from hpcrl.errors import InternalError
from hpcrl.events import NotDeterministic, NumericsChanged, ReplayDrifted
from hpcrl.master.replay import in_words, unlike, why_other_bits

Record = Mapping[str, Any]


class DriftCheck:
    """Of one attempt, which begins with the parameters of `digests` (role → digest; base weights have none)."""

    def __init__(
        self,
        digests: Mapping[str, str],
        deterministic: bool,
        note: Callable[[ReplayDrifted | NotDeterministic | NumericsChanged], None],
    ) -> None:
        self._now = dict(digests)
        self._deterministic = deterministic
        self._note = note
        self._replayed: dict[Unit, Trained] = {}
        self._made_again: frozenset[int] = frozenset()
        self._after: dict[int, dict[str, str]] = {}
        self._parameters: dict[str, str] = {}
        self._inexact: set[str] = set()
        self._older: dict[str, Numerics] = {}

    def expect(self, replay: Iterable[Trained], made_again: Iterable[int], older: Mapping[str, Numerics]) -> None:
        """The train_steps and blends that are replayed, and the steps of which something is computed again, because it
        was damaged. `older` is over what each call's newest one was made in older attempts."""
        self._older = dict(older)
        self._replayed = {Unit(line.step, line.call, 0): line for line in replay}
        self._made_again = frozenset(made_again)

    def record_of(self, unit: Unit) -> dict[str, Any] | None:
        """What the replay of a unit follows; None for one that is no replay."""
        return dict(self._replayed[unit].record) if unit in self._replayed else None

    def recorded(self, unit: Unit) -> Trained | None:
        """The line that a replay follows; None of a unit that is no replay."""
        return self._replayed.get(unit)

    def after(self, step: int) -> dict[str, str]:
        """Role → digest of its parameters after the train_steps and blends of a step."""
        return self._after.get(step, {})

    def forget(self, steps: Iterable[int]) -> None:
        for step in steps:
            self._after.pop(step, None)

    def digest(self, role: str) -> str:
        """Of its parameters as they are now; "" for base weights."""
        return self._now.get(role, "")

    def inexact(self, unit: Unit, operations: Collection[str]) -> None:
        """Operations of a train_step may give other bits every time. Noted once for each in an attempt."""
        for operation in sorted(set(operations) - self._inexact):
            self._note(NotDeterministic(unit.step, unit.call, operation))
        self._inexact.update(operations)

    def moved(self, version: Version, home: Mapping[int, str], replica: Mapping[int, str]) -> None:
        """Parameters were brought from home to a replica; their digests, as each rank has it that holds some of them.

        Raises InternalError where they are not the same, or not those that the last change has made.
        """
        made = self._parameters.get(version.role)
        found = {*home.values(), *replica.values(), *([] if made is None else [made])}
        if len(found) > 1:
            name = f"{version.role}@{version.replica}"
            changed = "" if made is None else f", and its last change made {made}"
            raise InternalError(
                f"version {version.number} of {version.role} was moved to {name}, which now has the parameters "
                f"{_by_rank(replica)}, but home has {_by_rank(home)}{changed}."
            )

    def changed(
        self,
        unit: Unit,
        role: str,
        records: Mapping[int, Record],
        stats: Stats,
        numerics: Numerics,
        source: str = "",
    ) -> str:
        """A train_step or blend was executed, with a record from each rank: the digest of the parameters that it began
        with. `source` is the digest of those that a blend took in.

        Raises InternalError where the ranks differ, or a replay in a way that nothing explains.
        """
        digests = {rank: str(record.get("digest", "")) for rank, record in records.items()}
        if len(set(digests.values())) > 1:
            raise InternalError(f"step {unit.step}, {unit.call}: the ranks hold different parameters: {digests}")
        was = self._older.pop(unit.call, numerics)
        if was != numerics:
            self._note(NumericsChanged(unit.step, unit.call, was=in_words(was), now=in_words(numerics)))
        before, digest = self._now.get(role, ""), next(iter(digests.values()))
        if unit in self._replayed and digest != self._replayed[unit].record["digest"]:
            self._drifted(unit, role, digests, stats, numerics, source)
        self._now[role] = digest
        if made := {str(record["parameters"]) for record in records.values() if "parameters" in record}:
            self._parameters[role] = made.pop()
        self._after.setdefault(unit.step, {})[role] = digest
        return before

    def _drifted(
        self, unit: Unit, role: str, digests: Mapping[int, str], stats: Stats, numerics: Numerics, source: str
    ) -> None:
        """A replay gave other bits than the first time: an error, unless what it was made of and by explains it.

        What they explain is rounding, so that the statistics have to be alike, where the replay began with the very
        parameters and inputs of the first time. A later one drifts with those before it, and is not compared.
        """
        recorded, before, digest = self._replayed[unit], self._now.get(role, ""), next(iter(digests.values()))
        expected, made_again = recorded.record["digest"], unit.step in self._made_again
        why = why_other_bits(recorded, numerics, before, made_again, source)
        apart = unlike(recorded.stats, stats) if before == recorded.before and not made_again else ""
        self._note(ReplayDrifted(unit.step, role, digest, expected, why or "not explained", unlike=apart))
        if not self._deterministic or (why and not apart):
            return
        found = f"{apart}, which is no rounding ({why})" if why else f"digest {digest} where the journal has {expected}"
        raise InternalError(
            f"replaying step {unit.step} gave role {role} (ranks {list(digests)}) {found}.",
            "With `hpcrl resume RUN --deterministic false` the run may continue with other numbers.",
        )


def _by_rank(digests: Mapping[int, str]) -> str:
    """`d1 on ranks [0, 1], d2 on ranks [2]`."""
    ranks: dict[str, list[int]] = {}
    for rank, digest in sorted(digests.items()):
        ranks.setdefault(digest, []).append(rank)
    return ", ".join(f"{digest} on ranks {alike}" for digest, alike in ranks.items())
