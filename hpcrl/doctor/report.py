"""The findings as `hpcrl doctor` shows them: a table or JSON, and the exit status."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hpcrl.doctor.findings import Finding, Severity, count
from hpcrl.doctor.measurements import Measurements

EXIT_STATUS: Mapping[Severity, int] = MappingProxyType(
    {Severity.OK: 0, Severity.NOTE: 0, Severity.WARNING: 1, Severity.PROBLEM: 2}
)
COLOURS: Mapping[Severity, str] = MappingProxyType(
    {Severity.OK: "green", Severity.NOTE: "cyan", Severity.WARNING: "yellow", Severity.PROBLEM: "bold red"}
)


def exit_status(findings: Iterable[Finding]) -> int:
    """0: fine, 1: warnings, 2: problems."""
    return max((EXIT_STATUS[finding.severity] for finding in findings), default=0)


def as_json(findings: Sequence[Finding], measured: Measurements) -> str:
    """The findings, and all that they follow from."""
    shown = {"status": exit_status(findings), "findings": findings, "measurements": measured}
    return msgspec.json.format(msgspec.json.encode(shown)).decode()


def render(findings: Sequence[Finding]) -> RenderableType:
    """The findings for people: a heading for each area, a line for each finding, and how it comes out."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("", "found", "what follows"):
        table.add_column(column)
    table.add_column("severity", no_wrap=True)
    area = ""
    for finding in findings:
        if finding.area != area:
            area = finding.area
            table.add_row(Text(area, style="bold"), "", "", "")
        severity = Text(finding.severity, style=COLOURS[finding.severity])
        table.add_row(Text(f"  {finding.what}"), Text(finding.value), Text(finding.follows), severity)
    return Group(table, Text(), _total(findings))


def _total(findings: Sequence[Finding]) -> Text:
    counts = Counter(finding.severity for finding in findings)
    shown = (Severity.PROBLEM, Severity.WARNING, Severity.NOTE)
    total = ", ".join(count(counts[severity], severity) for severity in shown)
    worst = next((severity for severity in shown[:2] if counts[severity]), Severity.OK)
    return Text(total, style=COLOURS[worst])
