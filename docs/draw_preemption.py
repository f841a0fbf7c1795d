"""Draws docs/preemption.svg: `python docs/draw_preemption.py > docs/preemption.svg`. Not to scale."""

from collections.abc import Iterator
from dataclasses import dataclass

WIDTH, LEFT, RIGHT = 1060, 150, 1040
LANE, BAR = 46, 24
TOLD, ENDED, AGAIN, READY, STEP = 300, 440, 740, 860, 960
"""Where the five moments are, from left to right."""
MOMENTS = (
    (TOLD, "told to go"), (ENDED, "attempt n ends"), (AGAIN, "back"), (READY, "workers ready"), (STEP, "a step closes"),
)  # fmt: skip
COLOURS = {
    "work": ("#2e7d4f", "#e4f1e9"),
    "drain": ("#b4571a", "#fbeadf"),
    "wait": ("#5b6570", "#eef0f2"),
    "start": ("#2563ab", "#e3edf8"),
}


@dataclass(frozen=True)
class Bar:
    """What somebody does from one place to another."""

    begin: int
    end: int
    kind: str
    text: str


@dataclass(frozen=True)
class Panel:
    """One case: lanes of bars, and what the five moments' clocks say on two clusters."""

    title: str
    lanes: tuple[tuple[str, tuple[Bar, ...]], ...]
    clocks: tuple[tuple[str, tuple[str, ...]], ...]


HOLD = Bar(ENDED, AGAIN, "wait", "queued again: Slurm holds it, then queue")
STAYS = (
    Bar(LEFT, TOLD, "work", "calls"), Bar(TOLD, ENDED, "drain", "calls in flight"),
    Bar(ENDED, AGAIN, "wait", "keep their nodes; old workers are killed"), Bar(AGAIN, READY, "start", "fork, load"),
    Bar(READY, RIGHT, "work", "replay, calls"),
)  # fmt: skip
PANELS = (
    Panel(
        "array: one node is taken",
        (
            ("master", (
                Bar(LEFT, TOLD, "work", "attempt n"), Bar(TOLD, ENDED, "drain", "begins no call"),
                Bar(ENDED, AGAIN, "wait", "waits for the node, ≤ replace_timeout_s"),
                Bar(AGAIN, READY, "start", "introduces"), Bar(READY, RIGHT, "work", "attempt n+1"),
            )),
            ("elements 0–2", STAYS),
            ("element 3", (
                Bar(LEFT, TOLD, "work", "calls"), Bar(TOLD, ENDED, "drain", "calls in flight"), HOLD,
                Bar(AGAIN, READY, "start", "fork, load"), Bar(READY, RIGHT, "work", "replay, calls"),
            )),
        ),
        (
            ("test cluster", ("0 s", "0.1 s", "9.7 s", "9.9 s", "10.7 s")),
            ("default site", ("0 s", "≤ 25 s", "121 s + queue after its end", "+ load", "+ replay")),
        ),
    ),
    Panel(
        "colocated and hetjob: the job is taken",
        (
            ("master", (
                Bar(LEFT, TOLD, "work", "attempt n"), Bar(TOLD, ENDED, "drain", "begins no call"), HOLD,
                Bar(AGAIN, READY, "start", "introduces"), Bar(READY, RIGHT, "work", "attempt n+1"),
            )),
            ("all nodes", (
                Bar(LEFT, TOLD, "work", "calls"), Bar(TOLD, ENDED, "drain", "calls in flight"), HOLD,
                Bar(AGAIN, READY, "start", "fork, load"), Bar(READY, RIGHT, "work", "replay, calls"),
            )),
        ),
        (
            ("test cluster", ("0 s", "0.2 s", "11.4 s", "12.8 s", "14.2 s")),
            ("default site", ("0 s", "≤ 25 s", "121 s + queue after its end", "+ load", "+ replay")),
        ),
    ),
)  # fmt: skip


def draw_panel(panel: Panel, top: int) -> Iterator[str]:
    """The panel's elements, from `top` down."""
    yield f'<text x="16" y="{top + 14}" class="title">{panel.title}</text>'
    lanes = top + 44
    bottom = lanes + LANE * len(panel.lanes)
    for x, name in MOMENTS:
        yield f'<text x="{x}" y="{top + 34}" class="moment">{name}</text>'
        yield f'<line x1="{x}" y1="{top + 40}" x2="{x}" y2="{bottom}" stroke="#9aa3ad" stroke-dasharray="3 3"/>'
    for number, (name, bars) in enumerate(panel.lanes):
        y = lanes + LANE * number
        yield f'<text x="16" y="{y + 26}" class="lane">{name}</text>'
        for bar in bars:
            line, fill = COLOURS[bar.kind]
            box = f'x="{bar.begin + 1}" y="{y + 10}" width="{bar.end - bar.begin - 2}" height="{BAR}" rx="4"'
            yield f'<rect {box} fill="{fill}" stroke="{line}"/>'
            yield f'<text x="{(bar.begin + bar.end) / 2:g}" y="{y + 26}" class="bar" fill="{line}">{bar.text}</text>'
    for number, (name, clock) in enumerate(panel.clocks):
        y = bottom + 16 + 18 * number
        yield f'<text x="16" y="{y}" class="clock">{name}</text>'
        for (x, _), when in zip(MOMENTS, clock, strict=True):
            yield f'<text x="{x}" y="{y}" class="moment">{when}</text>'


def height(panel: Panel) -> int:
    return 44 + LANE * len(panel.lanes) + 18 * len(panel.clocks) + 34


def draw() -> str:
    """The whole picture."""
    parts, top = [], 12
    for panel in PANELS:
        parts += draw_panel(panel, top)
        top += height(panel)
    style = (
        "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;font-size:11px}"
        ".title{font-size:14px;font-weight:600}.lane{font-weight:600}.bar,.moment{text-anchor:middle}.clock{fill:#5b6570}"
    )
    size = f'width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    background = f'<rect width="{WIDTH}" height="{top}" fill="#ffffff"/>'
    return "\n".join([head, f"<style>{style}</style>", background, *parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    print(draw(), end="")
