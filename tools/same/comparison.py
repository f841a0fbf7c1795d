"""Compares two run directories. Knows files; knows neither trees nor how the runs were made.

Everything an undisturbed run computed must be equal byte for byte, except for the order of the journal's lines: parts
of calls finish in any order. Of a run that was killed and resumed, only the results are compared: its journals and
spills depend on the moment of the kill.

Files that tell when, where and how a run was executed are not compared: run.json, plan.json, events, logs, claims,
verdicts, rendezvous and control.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from same.records import Fields, fields_of, json_line, metric_rows

COMPUTED = ("checkpoints", "export", "spills")
"""Folders in which every file is compared."""
SUBJECT = ("type", "step", "call", "part", "role", "name")
"""Fields of a journal line that tell what it is about."""
MANIFEST = "MANIFEST.json"
LONGEST = 60
ABSENT = "absent"


@dataclass(frozen=True)
class Difference:
    """A value that differs: its file, its field, and where in the file it is."""

    file: str
    field: str
    where: str
    base: str
    here: str

    @property
    def kind(self) -> str:
        """Its file and field without numbers: differences of one kind are printed once."""
        return re.sub(r"\d+", "#", f"{self.file} {self.field}")

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        return f"{self.file}: {self.field}{where}: BASE {self.base}, here {self.here}"


@dataclass
class Findings:
    """How much was compared, by sort, and what differs."""

    compared: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)

    def lines(self, most: int) -> list[str]:
        """The first difference of each kind, for `most` kinds."""
        kinds: dict[str, list[Difference]] = defaultdict(list)
        for difference in self.differences:
            kinds[difference.kind].append(difference)
        shown = [f"{found[0]}{_more(len(found) - 1)}" for found in list(kinds.values())[:most]]
        hidden = len(kinds) - len(shown)
        return [*shown, f"and differences of {hidden} more kinds"] if hidden else shown


def compare_undisturbed(base: Path, here: Path, racing: bool = False) -> Findings:
    """Everything that two undisturbed runs computed.

    A manifest lists the roles' digests in the order in which their train steps finished. Where roles are `racing`,
    that order differs from run to run: neither it nor the manifests' CRCs in the journal are compared.
    """
    findings = Findings()
    compare_journals = racing_journal_differences if racing else journal_differences
    compare_files = racing_file_differences if racing else file_differences
    for name in _names(base, here, "attempts/*/metrics.jsonl"):
        _compare_file(findings, "metric rows", name, base / name, here / name, _metrics_differences)
    for name in _names(base, here, "attempts/*/journal.jsonl"):
        _compare_file(findings, "journal lines", name, base / name, here / name, compare_journals)
    for folder in COMPUTED:
        for name in _names(base, here, f"{folder}/**/*"):
            _compare_file(findings, f"files in {folder}", name, base / name, here / name, compare_files)
    return _complete(findings, ("metric rows", "journal lines", *(f"files in {folder}" for folder in COMPUTED)))


def compare_killed(base: Path, here: Path) -> Findings:
    """The results of two runs that were killed and resumed: metrics, exports and the last checkpoint."""
    findings = Findings()
    metrics = merged_metrics(base), merged_metrics(here)
    findings.compared["metric rows"] += len(metrics[0])
    findings.differences += _row_differences("metrics", *metrics)
    for name in _names(base, here, "export/**/*"):
        _compare_file(findings, "files in export", name, base / name, here / name, file_differences)
    ours, theirs = last_checkpoint(base), last_checkpoint(here)
    for name in sorted(ours.keys() | theirs.keys()):
        findings.compared["files in the last checkpoint"] += 1
        findings.differences += _field_differences(f"last checkpoint/{name}", ours.get(name, {}), theirs.get(name, {}))
    return _complete(findings, ("metric rows", "files in export", "files in the last checkpoint"))


def compare_folders(base: Path, here: Path) -> Findings:
    """All files in two folders, byte for byte."""
    findings = Findings()
    for name in _names(base, here, "**/*"):
        _compare_file(findings, "files", name, base / name, here / name, file_differences)
    return _complete(findings, ("files",))


def merged_metrics(run: Path) -> dict[str, Fields]:
    """A row per step; if several attempts have one, the newest attempt's."""
    merged: dict[str, Fields] = {}
    for path in sorted(run.glob("attempts/*/metrics.jsonl")):
        merged |= metric_rows(path.read_bytes())
    return merged


def last_checkpoint(run: Path) -> dict[str, Fields]:
    """The content of each file in the newest checkpoint, by file name.

    Attempt numbers in it are masked: which attempt writes a checkpoint depends on the moment of the kill.
    """
    manifests = run.glob(f"checkpoints/*/{MANIFEST}")
    folder = max((path.parent for path in manifests), key=lambda path: path.name, default=run / "none")
    files = {path.name: fields_of(path, path.read_bytes()) for path in sorted(folder.glob("*"))}
    return {name: {key: _any_attempt(key, value) for key, value in held.items()} for name, held in files.items()}


def _any_attempt(key: str, value: Any) -> Any:
    if key == "attempt":
        return "any"
    return re.sub(r"\.a\d{3,}/", ".any/", value) if isinstance(value, str) else value


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
Compare = Callable[[str, bytes, bytes], Iterable[Difference]]


def _names(base: Path, here: Path, pattern: str) -> list[str]:
    """Relative paths of the files that match in either run."""
    return sorted({str(path.relative_to(run)) for run in (base, here) for path in run.glob(pattern) if path.is_file()})


def _compare_file(findings: Findings, sort: str, name: str, base: Path, here: Path, compare: Compare) -> None:
    """Compare a file, and count it, or its lines where `sort` does not say files."""
    if not (base.is_file() and here.is_file()):
        there = [("there" if path.is_file() else "missing") for path in (base, here)]
        findings.differences.append(Difference(name, "the file", "", *there))
        return
    data = base.read_bytes()
    findings.compared[sort] += 1 if sort.startswith("files") else data.count(b"\n")
    findings.differences += compare(name, data, here.read_bytes())


def file_differences(name: str, base: bytes, here: bytes) -> list[Difference]:
    """The fields in which two versions of a file differ, or else the first byte."""
    if base == here:
        return []
    path = Path(name)
    found = list(_field_differences(name, fields_of(path, base), fields_of(path, here)))
    return found or [_first_byte(name, base, here)]


def racing_file_differences(name: str, base: bytes, here: bytes) -> list[Difference]:
    """The same, except that the order of a manifest's keys does not count."""
    if Path(name).name == MANIFEST:
        return list(_field_differences(name, fields_of(Path(name), base), fields_of(Path(name), here)))
    return file_differences(name, base, here)


def _first_byte(name: str, base: bytes, here: bytes) -> Difference:
    pairs = enumerate(zip(base, here, strict=False))
    first = next((i for i, (one, other) in pairs if one != other), min(len(base), len(here)))
    shown = [f"{data[first : first + 8]!r} of {len(data)} bytes" for data in (base, here)]
    return Difference(name, "bytes", f"from byte {first}", *shown)


def _metrics_differences(name: str, base: bytes, here: bytes) -> list[Difference]:
    if base == here:
        return []
    return list(_row_differences(name, metric_rows(base), metric_rows(here))) or [_first_byte(name, base, here)]


def _row_differences(file: str, base: Mapping[str, Fields], here: Mapping[str, Fields]) -> Iterator[Difference]:
    for row in [*base, *(row for row in here if row not in base)]:
        yield from _field_differences(file, base.get(row, {}), here.get(row, {}), row)


# ── journals ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def journal_differences(name: str, base: bytes, here: bytes) -> Iterator[Difference]:
    """Lines that only one journal has; two such lines about the same thing are compared field by field."""
    ours, theirs = (Counter(data.splitlines(keepends=True)) for data in (base, here))
    only = [_by_subject((counted - other).elements()) for counted, other in ((ours, theirs), (theirs, ours))]
    for subject in sorted(only[0].keys() | only[1].keys()):
        yield from _line_differences(name, subject, only[0].get(subject, []), only[1].get(subject, []))


def racing_journal_differences(name: str, base: bytes, here: bytes) -> Iterator[Difference]:
    """The same without the CRCs of manifests, and without those of the lines that contain them."""
    return journal_differences(name, _without_crcs_of_manifests(base), _without_crcs_of_manifests(here))


def _without_crcs_of_manifests(journal: bytes) -> bytes:
    lines = journal.splitlines(keepends=True)
    crc = re.compile(rb'("crc": *"|"crc32": *)\w+')
    return b"".join(crc.sub(rb"\g<1>0", line) if b'"manifest"' in line else line for line in lines)


def _line_differences(name: str, subject: str, base: Sequence[bytes], here: Sequence[bytes]) -> Iterator[Difference]:
    kind = subject.partition(" ")[0]
    for one, other in zip(base, here, strict=False):
        found = list(_field_differences(name, _event(one), _event(other), subject, f"{kind} "))
        yield from found or [replace(_first_byte(name, one, other), field=f"{kind} line", where=subject)]
    for line in base[len(here) :]:
        yield Difference(name, f"{kind} line", subject, _short(line.decode(errors="replace")), ABSENT)
    for line in here[len(base) :]:
        yield Difference(name, f"{kind} line", subject, ABSENT, _short(line.decode(errors="replace")))


def _by_subject(lines: Iterable[bytes]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = defaultdict(list)
    for line in sorted(lines):
        event = _event(line)
        found[" ".join(str(event[key]) for key in SUBJECT if key in event) or "unreadable"].append(line)
    return found


def _event(line: bytes) -> Fields:
    """The fields of a line's event; its CRC follows from them."""
    fields = json_line(line)
    return {name.removeprefix("event."): value for name, value in fields.items() if name != "crc"}


# ── fields ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def _field_differences(
    file: str, base: Fields, here: Fields, where: str = "", prefix: str = ""
) -> Iterator[Difference]:
    for name in [*base, *(name for name in here if name not in base)]:
        if name not in here:
            yield Difference(file, f"{prefix}{name}", where, _short(base[name]), ABSENT)
        elif name not in base:
            yield Difference(file, f"{prefix}{name}", where, ABSENT, _short(here[name]))
        elif isinstance(base[name], np.ndarray) and isinstance(here[name], np.ndarray):
            yield from _array_differences(file, f"{prefix}{name}", where, base[name], here[name])
        elif repr(base[name]) != repr(here[name]):
            yield Difference(file, f"{prefix}{name}", where, _short(base[name]), _short(here[name]))


def _array_differences(file: str, name: str, where: str, base: np.ndarray, here: np.ndarray) -> Iterator[Difference]:
    """Compares bits: a NaN equals itself, and 0.0 is not -0.0."""
    forms = [f"{array.dtype} {list(array.shape)}" for array in (base, here)]
    if forms[0] != forms[1]:
        yield Difference(file, name, where, *forms)
    elif base.tobytes() != here.tobytes():
        bits = [np.frombuffer(array.tobytes(), np.uint8).reshape(base.size, -1) for array in (base, here)]
        unlike = np.flatnonzero((bits[0] != bits[1]).any(axis=1))
        first = int(unlike[0])
        place = f"{where} element {first}, {len(unlike)} of {base.size} differ".strip()
        yield Difference(file, name, place, *(_short(array.reshape(-1)[first]) for array in (base, here)))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _more(count: int) -> str:
    return f" (and {count} more like this)" if count else ""


def _complete(findings: Findings, expected: Sequence[str]) -> Findings:
    """Count it as a difference if there was nothing to compare."""
    lacking = [sort for sort in expected if not findings.compared[sort]]
    findings.differences += [Difference("the run", sort, "", "none", "none, nothing to compare") for sort in lacking]
    return findings
