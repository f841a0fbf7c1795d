"""`hpcrl doctor`: what this cluster and its shared filesystem are like, and which settings follow."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jsonargparse import ArgumentParser
from rich.console import Console

from hpcrl.cli.arguments import asks_for_help, command_parser, parse
from hpcrl.config.validate import network_problems
from hpcrl.errors import ConfigurationError, ExitCode


def run(words: Sequence[str]) -> int:
    parser = _parser()
    if asks_for_help(words):
        print(parser.format_help())
        return int(ExitCode.DONE)
    given = parse(parser, words)
    if given.in_job and given.no_jobs:
        raise ConfigurationError(["--in-job and --no-jobs are opposites."], "Give one of them.")
    if given.nodes < 1:
        raise ConfigurationError([f"--nodes = {given.nodes} is too few."], "Give 1 or more.")
    # Only now are sockets and Slurm worth their imports.
    from hpcrl.doctor.check import check
    from hpcrl.doctor.measure import MeasureRequest, measure, read_site_file
    from hpcrl.doctor.measure_nodes import JobRequest
    from hpcrl.doctor.report import as_json, exit_status, render

    site_root, cluster = read_site_file()
    cluster = replace(cluster, interface=given.interface or cluster.interface, ports=given.ports or cluster.ports)
    if problems := [problem.text for problem in network_problems(cluster)]:
        raise ConfigurationError(problems)
    slurm = cluster.slurm
    request = MeasureRequest(
        Path(given.run_root or site_root or ".").absolute(),
        "in job" if given.in_job else "none" if given.no_jobs else "by job",
        JobRequest(
            given.nodes,
            given.partition or slurm.partition,
            given.gpus,
            given.wait,
            cluster.interface,
            cluster.ports,
        ),
        slurm,
        given.partition,
    )
    measured = measure(request, os.environ)
    if measured is None:
        return int(ExitCode.DONE)
    findings = check(measured)
    if given.json:
        print(as_json(findings, measured))
    else:
        # Written to a file it is as wide as a page of a wide screen.
        Console(width=None if sys.stdout.isatty() else 140).print(render(findings))
    return exit_status(findings)


def _parser() -> ArgumentParser:
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
    parser.add_argument("--partition", type=str | None, default=None, help="by default the site file's, or Slurm's own")
    parser.add_argument("--run-root", type=str | None, default=None, help="the folder to try; else the site's, or .")
    parser.add_argument("--interface", type=str | None, default=None, help="cluster.interface; by default the site's")
    parser.add_argument("--ports", type=str | None, default=None, help="cluster.ports; by default the site's")
    parser.add_argument("--wait", type=float, default=120.0, help="seconds that the job may wait in the queue")
    return parser
