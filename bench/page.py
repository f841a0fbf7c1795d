"""docs/performance.md from figures."""

from collections.abc import Sequence

from figures import Figure, Part

HEAD = """# Performance

Written by `make bench`; do not edit. Ratios are the peer's cost over hpcrl's (above 1: hpcrl is faster) unless the line
says otherwise. Both sides of a ratio are measured in one run, in turn, in processes with one thread each; figures are
medians of at least 3 rounds. Throughput is CPU time of the process, which other load on the machine distorts less than
wall time; latencies and durations are wall time. The model is a qwen2 of 5M parameters (6 blocks, hidden 256, 8/2
heads, vocabulary 4,096) in float32.
"""


def page(parts: Sequence[Part]) -> str:
    """Where all parts were measured on one machine, it stands at the head, else with each part."""
    judged = [figure for part in parts for figure in part.figures if figure.target]
    met = sum(figure.verdict == "met" for figure in judged)
    machines = sorted({part.machine for part in parts})
    summary = f"{met} of {len(judged)} targets are met.\n"
    if len(machines) == 1:
        summary = f"Machine: {machines[0]}.\n\n{summary}"
    return "\n".join([HEAD, summary, *(_section(part, names_machine=len(machines) > 1) for part in parts)])


def _section(part: Part, names_machine: bool) -> str:
    where = f" on {part.machine}" if names_machine else ""
    when = f"Measured {part.measured}{where} in {part.seconds:.0f} s; load before it: {part.load:g}."
    rows = [_row(figure) for figure in part.figures]
    table = ["| figure | measured | target | verdict | detail |", "|---|---|---|---|---|", *rows]
    return "\n".join([f"## {part.title}", "", part.how, "", *table, "", f"<sub>{when}</sub>", ""])


def _row(figure: Figure) -> str:
    value = "–" if figure.value is None else f"{_short(figure.value)} {figure.unit}".strip()
    detail = figure.detail.replace("|", "\\|").replace("\n", " ")
    return f"| {figure.what} | {value} | {figure.target or '–'} | {figure.verdict or '–'} | {detail} |"


def _short(value: float) -> str:
    """Three digits, and all of those before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
