"""How two runs differ: in settings, inputs and code, and from which step on in what they measured and trained on."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from hpcrl.durable.history import accepted_inputs, read_history
from hpcrl.durable.records import CodeCopy, changed_inputs
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.step_lines import steps_in
from hpcrl.inspect.lines import Row
from hpcrl.inspect.reader import RunReader

Lacks = Literal["", "first", "second"]

NOT_CURVES = ("step", "settings")
"""Of a row: which one it is, and under which version of the run's own settings it was made."""


class Difference(msgspec.Struct, frozen=True):
    """A setting by its dotted name, or an input or a file of code by its name, in both runs. `lacks` says which of them
    has none of this name; its value is null then."""

    name: str
    first: Any
    second: Any
    lacks: Lacks = ""


class Curve(msgspec.Struct, frozen=True):
    """A metric that is not the same in all steps that both have. `last_by` is second - first of numbers."""

    metric: str
    step: int
    """The first one in which it differs."""
    first: Any
    second: Any
    last_step: int
    """The last one in which both have it."""
    last_first: Any
    last_second: Any
    last_by: float | None


class OtherSamples(msgspec.Struct, frozen=True):
    """The first step that was made of other samples, or of the same in another order."""

    step: int
    position: int
    """The first that differs, from 0."""
    first: str | None
    second: str | None
    """Its id in each run; null where a run has fewer."""
    in_both: int
    """How many samples of the step both have."""
    count_first: int
    count_second: int


class Diff(msgspec.Struct, frozen=True):
    """The JSON of `hpcrl inspect RUN diff OTHER --json`."""

    first: str
    second: str
    settings: list[Difference]
    """The newest of each run."""
    inputs: list[Difference]
    """Fingerprints of data sets and models."""
    code: list[Difference]
    """Digests of files of the user's code, as they were copied last."""
    steps_first: int
    steps_second: int
    compared: int
    """Steps that have closed in both."""
    curves: list[Curve]
    only: dict[str, Lacks]
    """Metrics that one run lacks altogether in these steps."""
    samples: OtherSamples | None

    @property
    def same(self) -> bool:
        """Whether nothing differs in what both have done."""
        return not (self.settings or self.inputs or self.code or self.curves or self.only or self.samples)


def diff(first: RunReader, second: RunReader) -> Diff:
    """Reads the journals of both runs. Raises InternalError where a run's settings are damaged."""
    rows = [{row["step"]: row for row in reader.rows()} for reader in (first, second)]
    both = sorted(rows[0].keys() & rows[1].keys())
    metrics = [dict.fromkeys(name for step in both for name in of[step] if name not in NOT_CURVES) for of in rows]
    only: dict[str, Lacks] = {name: "second" for name in metrics[0] if name not in metrics[1]}
    only |= {name: "first" for name in metrics[1] if name not in metrics[0]}
    curves = (_curve(name, both, *rows) for name in metrics[0] if name in metrics[1])
    return Diff(
        first=str(first.run.root),
        second=str(second.run.root),
        settings=differences(*(dict(flat(_settings(reader.run))) for reader in (first, second))),
        inputs=_inputs(first.run, second.run),
        code=differences(*({path: it.digest for path, it in _code(of.run).files.items()} for of in (first, second))),
        steps_first=first.step,
        steps_second=second.step,
        compared=len(both),
        curves=sorted((curve for curve in curves if curve is not None), key=lambda it: it.step),
        only=only,
        samples=_samples(first.run, second.run),
    )


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by their dotted names; lists are values."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _settings(run: RunDirectory) -> dict[str, Any]:
    return run.read_settings(run.versions()[-1]).experiment


def _code(run: RunDirectory) -> CodeCopy:
    newest = run.newest_code()
    return CodeCopy({}, {}, "") if newest < 0 else run.read_code(newest)


def _inputs(first: RunDirectory, second: RunDirectory) -> list[Difference]:
    found = [run.read_run().inputs | accepted_inputs(read_history(run)) for run in (first, second)]
    wanted = changed_inputs(*found)
    return differences(*({name: of[name] for name in wanted if name in of} for of in found))


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    found = []
    for name in dict.fromkeys((*first, *second)):
        if name not in first or name not in second:
            lacks: Lacks = "first" if name not in first else "second"
            found.append(Difference(name, first.get(name), second.get(name), lacks))
        elif not same(first[name], second[name]):
            found.append(Difference(name, first[name], second[name]))
    return found


def same(one: Any, other: Any) -> bool:
    """To the bit; what is no number is the same as another that is none."""
    return bool(one == other) or (one != one and other != other)


def _curve(name: str, steps: list[int], first: Mapping[int, Row], second: Mapping[int, Row]) -> Curve | None:
    """None where it never differs. A step that only one run has measured it in differs."""
    measured = [step for step in steps if name in first[step] or name in second[step]]
    differs = next((it for it in measured if not same(first[it].get(name), second[it].get(name))), None)
    if differs is None:
        return None
    last = next((it for it in reversed(measured) if name in first[it] and name in second[it]), differs)
    ends = first[last].get(name), second[last].get(name)
    by = _by(*ends)
    return Curve(name, differs, first[differs].get(name), second[differs].get(name), last, *ends, by)


def _by(one: Any, other: Any) -> float | None:
    return other - one if isinstance(one, int | float) and isinstance(other, int | float) else None


def _samples(first: RunDirectory, second: RunDirectory) -> OtherSamples | None:
    """As the lines say that the run believes."""
    made = []
    for run in (first, second):
        events = (line.event for line in read_history(run).lines)
        made.append(steps_in([event for event in events if event is not None]))
    for step in sorted(made[0].keys() & made[1].keys()):
        ids = [of[step].ids for of in made]
        if ids[0] != ids[1]:
            at = next((i for i, pair in enumerate(zip(*ids, strict=False)) if pair[0] != pair[1]), min(map(len, ids)))
            one, other = (of[at] if at < len(of) else None for of in ids)
            return OtherSamples(step, at, one, other, len({*ids[0]} & {*ids[1]}), len(ids[0]), len(ids[1]))
    return None
