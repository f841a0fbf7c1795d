"""`hpcrl doctor`: what this cluster and its shared filesystem are like, and which settings follow."""

import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hpcrl.cli.arguments import asks_for_help, command_parser, parse
from hpcrl.config.load import site_file
from hpcrl.config.slurm import SlurmConfig
from hpcrl.config.yaml_file import read_yaml
from hpcrl.errors import ConfigurationError, ExitCode

if TYPE_CHECKING:
    from hpcrl.doctor.findings import Finding

COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "bold red"}


def run(words: Sequence[str]) -> int:
    parser = command_parser(
        "doctor",
        "Look at Slurm, the shared filesystem, Python and the network, and say what follows for the settings. Submits "
        "one small job. Exit status: 0 all is well, 1 warnings, 2 problems.",
    )
    parser.add_argument("--json", action="store_true", help="print the findings and all that was measured as JSON")
    parser.add_argument(
        "--in-job", action="store_true", help="ask the nodes of the job that this shell is in; submit none"
    )
    parser.add_argument("--no-jobs", action="store_true", help="submit no job; look only from here")
    parser.add_argument("--nodes", type=int, default=2, help="how many nodes the job asks")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs that the job asks for per node, to see their links")
    parser.add_argument("--partition", type=str | None, default=None, help="null: the site file's, or Slurm's own")
    parser.add_argument("--run-root", type=str | None, default=None, help="the folder to try; null: the site's, or .")
    parser.add_argument("--wait", type=float, default=120.0, help="seconds that the job may wait in the queue")
    if asks_for_help(words):
        print(parser.format_help())
        return int(ExitCode.DONE)
    given = parse(parser, words)
    if given.in_job and given.no_jobs:
        raise ConfigurationError(["--in-job and --no-jobs are opposites. Give one of them."])
    if given.nodes < 1:
        raise ConfigurationError([f"--nodes = {given.nodes} must be at least 1."])
    # Only now are sockets and Slurm worth their imports.
    from hpcrl.doctor.check import check
    from hpcrl.doctor.findings import exit_status
    from hpcrl.doctor.measure import Examination, examine
    from hpcrl.doctor.measure_nodes import JobRequest

    site_root, slurm = read_site_file()
    plan = Examination(
        Path(given.run_root or site_root or ".").absolute(),
        "in job" if given.in_job else "none" if given.no_jobs else "by job",
        JobRequest(given.nodes, given.partition or slurm.partition, given.gpus, given.wait),
        slurm,
        given.partition,
    )
    measured = examine(plan, os.environ)
    if measured is None:
        return int(ExitCode.DONE)
    findings = check(measured)
    status = exit_status(findings)
    if given.json:
        shown = {"status": status, "findings": findings, "measurements": measured}
        print(msgspec.json.format(msgspec.json.encode(shown)).decode())
    else:
        # Written to a file it is as wide as a page of a wide screen.
        Console(width=None if sys.stdout.isatty() else 140).print(render(findings))
    return status


def read_site_file() -> tuple[str | None, SlurmConfig]:
    """run_root and cluster.slurm of the site's defaults. Raises ConfigurationError for a value of the wrong type."""
    path = site_file()
    values = {} if path is None else read_yaml(path)
    slurm = (values.get("cluster") or {}).get("slurm") or {}
    try:
        config = msgspec.convert(slurm, SlurmConfig, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigurationError([f"cluster.slurm ({path}): {error}."]) from None
    root = values.get("run_root")
    return (os.path.expanduser(str(root)) if root else None), config


def render(findings: "Sequence[Finding]") -> RenderableType:
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


def _total(findings: "Sequence[Finding]") -> Text:
    counts = Counter(str(finding.severity) for finding in findings)
    found = [f"{counts[name]} {name}{'s' if counts[name] != 1 else ''}" for name in ("problem", "warning", "note")]
    style = next((COLOURS[name] for name in ("problem", "warning") if counts[name]), COLOURS["ok"])
    return Text(", ".join(found), style=style)
