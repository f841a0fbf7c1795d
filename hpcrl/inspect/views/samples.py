"""What the model said: responses of a run's archives with all that is known of them, as a value."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import msgspec

from hpcrl.errors import ConfigurationError
from hpcrl.inspect.archives import Archives, Sample
from hpcrl.inspect.conditions import ROW, Where, kinds_of
from hpcrl.inspect.steps_asked import ALL, NEWEST, chosen_steps

NAMED = ("step", "data_set", "sample", "row", "number", "ended", "error")
"""What every sample has besides its texts and figures."""
SHADES = ("advantages", "log_ratio")
"""By which tokens are coloured, the first of them that there is."""
IDS_SHOWN = 5


class Samples(msgspec.Struct, frozen=True):
    """What was asked for, of how many samples that were looked at. `lost` says which steps lack some, and why; `gone`
    is how many other steps were asked for, whose archives have been deleted."""

    run_dir: str
    steps: tuple[int, ...]
    looked_at: int
    samples: tuple[Sample, ...]
    lost: dict[int, str] = {}
    gone: int = 0


@dataclass(frozen=True)
class Asked:
    """Which samples, in which order, and how many at most. `prompt` is a row's id, or a sample's."""

    steps: str = NEWEST
    where: Where | None = None
    grep: re.Pattern[str] | None = None
    prompt: str | None = None
    sort: str | None = None
    descending: bool = False
    limit: int | None = None


def samples(archives: Archives, run_dir: str, asked: Asked) -> Samples:
    """Raises ConfigurationError, naming what there is, where a step, a prompt or a name is unknown."""
    everywhere = asked.prompt is not None and asked.steps == NEWEST
    steps, gone = chosen_steps(archives, ALL if everywhere else asked.steps)
    every = [sample for step in steps for sample in archives.samples(step)]
    found: Sequence[Sample] = every
    if asked.prompt is not None:
        found = [sample for sample in every if asked.prompt in (sample.row, sample.sample)]
        if not found:
            raise _unknown("--prompt", asked.prompt, dict.fromkeys(sample.row for sample in every), gone)
    _refuse_what_they_lack(every, asked)
    found = [sample for sample in found if _is_wanted(sample, asked)]
    if asked.sort is not None:
        found = _sorted(found, asked.sort, asked.descending)
    lost = {step: why for step in steps if (why := archives.lost(step))}
    return Samples(run_dir, tuple(steps), len(every), tuple(found[: asked.limit]), lost, gone)


def are_gone(steps: int) -> str:
    """Behind what is said of other steps; nothing where no archive is gone."""
    if not steps:
        return ""
    return "; the archive of another step is gone" if steps == 1 else f"; the archives of {steps} other steps are gone"


def shade_of(sample: Sample) -> tuple[str, list[float]]:
    """By what the tokens of a response are coloured, and a number for each; of none where there is nothing."""
    columns, count = sample.columns, len(sample.columns.get("responses", ()))
    if len(columns.get("advantages", ())) == count > 0:
        return SHADES[0], columns["advantages"]
    pairs = (columns.get("logprobs", ()), columns.get("ref_logprobs", ()))
    if count and all(len(column) == count for column in pairs):
        return SHADES[1], [one - other for one, other in zip(*pairs, strict=True)]
    return "", []


def pieces(sample: Sample) -> Iterator[tuple[str, float]]:
    """The response, piece by piece, each with its token's number among all, from -1 to 1."""
    text, (_, numbers) = sample.texts.get("response", ""), shade_of(sample)
    largest = max(map(abs, numbers), default=0.0) or 1.0
    at = 0
    for end, number in zip(sample.columns.get("responses.ends", ()), numbers, strict=False):
        yield text[at : int(end)], number / largest
        at = int(end)
    yield text[at:], 0.0


def values_of(sample: Sample) -> dict[str, Any]:
    """All that a condition may name."""
    record = sample.record if isinstance(sample.record, Mapping) else {}
    fields = {f"{ROW}.{name}": value for name, value in record.items()}
    return {**fields, **sample.texts, **sample.figures, **{name: getattr(sample, name) for name in NAMED}}


def _is_wanted(sample: Sample, asked: Asked) -> bool:
    if asked.grep is not None and not any(map(asked.grep.search, sample.texts.values())):
        return False
    return asked.where is None or asked.where.holds(values_of(sample))


def _refuse_what_they_lack(every: Iterable[Sample], asked: Asked) -> None:
    used = dict.fromkeys(() if asked.where is None else sorted(asked.where.names), "--where")
    if asked.sort is not None:
        used.setdefault(asked.sort, "--sort")
    if not used:
        return
    known = kinds_of(map(values_of, every))
    for name, option in used.items():
        if known and name not in known:
            raise _unknown(option, name, known)
    if asked.where is not None:
        asked.where.refuse_other_kinds(known)


def _unknown(option: str, name: str, known: Iterable[str], gone: int = 0) -> ConfigurationError:
    names = list(known)
    near = get_close_matches(name, names, n=1)
    guess = f" Did you mean {near[0]}?" if near else ""
    shown = ", ".join(names[:IDS_SHOWN]) + (", …" if len(names) > IDS_SHOWN else "")
    listed = shown if option == "--prompt" else ", ".join(names)
    text = f"{option} {name} is nothing that these samples have{are_gone(gone)}.{guess}"
    return ConfigurationError([text], f"There are: {listed}.")


def _sorted(found: Sequence[Sample], name: str, descending: bool) -> list[Sample]:
    """Those that lack it come last."""
    values = [(values_of(sample).get(name), sample) for sample in found]
    have = sorted((pair for pair in values if pair[0] is not None), key=_place, reverse=descending)
    return [sample for _, sample in [*have, *(pair for pair in values if pair[0] is None)]]


def _place(of: tuple[Any, Sample]) -> tuple[bool, Any]:
    """Numbers before texts; what is neither, as text."""
    value = of[0]
    return (False, value) if isinstance(value, int | float) else (True, str(value))
