"""A timeline as a page of HTML: a bar a worker, a colour a call; without scripts."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcrl.errors import ConfigurationError
from hpcrl.inspect.pages import COLOURS, markup, page
from hpcrl.inspect.tables import WAITED_FOR
from hpcrl.inspect.timeline_text import name_of, names_of, notes_of, path_of
from hpcrl.inspect.views.timeline import AttemptTime, Beside, Timeline

if TYPE_CHECKING:
    from markupsafe import Markup

MOST_SEGMENTS = 20_000
"""On a page; more are some megabytes, and nobody tells them apart."""

BODY = """<p>
{% if names %}<span class="key quiet">calls:</span>{% endif %}
{% for name, colour in names %}
<span class="key"><s class="c{{ colour }}"></s>{{ name }}</span>
{% endfor %}
{% for kind in kinds %}
<span class="key"><s class="{{ kind }}"></s>{{ kind }}</span>
{% endfor %}
{% if unfinished %}<span class="key"><s class="unfinished"></s>under way as the attempt ended</span>{% endif %}
</p>
{% for attempt in attempts %}
<h3>attempt {{ attempt.number }}: {{ attempt.begin }} to {{ attempt.end }} s after it began</h3>
<div class="lane quiet"><b>end of step <i>idle</i></b><div class="bar" style="background: none; border: 0">
{% for step in attempt.marks %}<em style="--at: {{ step.at }}%">{{ step.step }}</em>{% endfor %}
</div></div>
{% for lane in attempt.lanes %}
<div class="lane"><b title="{{ lane.host }}">{{ lane.name }} <i>{{ lane.idle }}</i></b><div class="bar">
{% for step in attempt.marks %}<u style="left: {{ step.at }}%"></u>{% endfor %}
{% for it in lane.segments %}
<s class="c{{ it.colour }}{{ it.mark }}" style="left: {{ it.left }}%; width: {{ it.width }}%"
title="{{ it.title }}"></s>
{% endfor %}
</div></div>
{% if lane.beside %}
<div class="lane beside"><b></b><div class="bar">
{% for it in lane.beside %}
<s class="{{ it.kind }}" style="left: {{ it.left }}%; width: {{ it.width }}%" title="{{ it.title }}"></s>
{% endfor %}
</div></div>
{% endif %}
{% endfor %}
<div class="wide"><table>
<thead><tr><th class="number">step</th><th class="number">seconds</th><th class="number">idle</th>
<th>{{ waited_for }}</th></tr></thead>
<tbody>
{% for step in attempt.steps %}
<tr><td class="number">{{ step.step }}</td><td class="number">{{ step.seconds }}</td>
<td class="number">{{ step.idle }}</td><td class="text long">{{ step.path }}</td></tr>
{% endfor %}
</tbody></table></div>
{% endfor %}
{% for note in notes %}<p class="quiet">{{ note }}</p>{% endfor %}
"""

PAGE = """<h1>Timeline of {{ name }}</h1>
<p class="quiet">Bars are calls, blends and moves, from when the slowest worker of a part began until all had replied;
faint ones are replays, framed ones were not finished. The thin bars below are outputs (spill) and checkpoints (save)
that are written behind the work, and parameters that leave a device at the end of a call (release). Dashed: the end of
a step. Percentages are the share of the time in which a worker executed nothing. Point at a bar for its times.</p>
{{ body }}
"""


def timeline_page(view: Timeline) -> bytes:
    """Raises ConfigurationError where there is too much for a page."""
    count = sum(len(lane.segments) for attempt in view.attempts for lane in attempt.lanes)
    if count > MOST_SEGMENTS:
        raise ConfigurationError(
            [f"{count} bars are more than the {MOST_SEGMENTS} that fit a page."],
            "Ask for fewer --steps, or --perfetto.",
        )
    name = Path(view.run_dir).name
    body = markup(PAGE, {"name": name, "body": timeline_body(view)})
    return page(f"Timeline of {name}", body).encode()


def timeline_body(view: Timeline) -> "Markup":
    """What a page has between its head and its end."""
    colours = _colours(view)
    attempts = [_attempt(attempt, colours) for attempt in view.attempts]
    kinds = sorted({it.kind for attempt in view.attempts for lane in attempt.lanes for it in lane.beside})
    unfinished = any(lane.unfinished for attempt in view.attempts for lane in attempt.lanes)
    names = list(colours.items())
    values = {"names": names, "kinds": kinds, "unfinished": unfinished, "attempts": attempts, "waited_for": WAITED_FOR}
    return markup(BODY, values | {"notes": notes_of(view)})


def _colours(view: Timeline) -> dict[str, int]:
    """Of the calls that it has: a call has the same colour on all pages of runs of one graph."""
    seen = names_of(view)
    every = [*view.calls, *sorted(set(seen) - set(view.calls))]
    return {name: number % COLOURS for number, name in enumerate(every) if name in seen}


def _attempt(view: AttemptTime, colours: dict[str, int]) -> dict[str, Any]:
    span_s = (view.end_s - view.begin_s) or 1.0

    def percent(seconds: float) -> float:
        return round(100 * seconds / span_s, 3)

    def segments(of: Any) -> Iterator[dict[str, Any]]:
        for it in (*of.segments, *of.unfinished):
            begin_s, end_s = max(it.begin_s, view.begin_s), min(it.end_s, view.end_s)
            if end_s > begin_s or it.begin_s == it.end_s:
                times = f"{it.begin_s:.3f} s, for {it.end_s - it.begin_s:.3f} s, "
                times += (
                    "not finished" if it in of.unfinished else f"sent {max(0.0, it.begin_s - it.sent_s):.3f} s before"
                )
                yield {
                    "colour": colours[it.name],
                    "mark": " unfinished" if it in of.unfinished else " replay" if it.replay else "",
                    "left": percent(begin_s - view.begin_s),
                    "width": percent(end_s - begin_s),
                    "title": f"{it.name}, step {it.step}, part {it.part}: {times}",
                }

    return {
        "number": view.attempt,
        "begin": f"{view.begin_s:.2f}",
        "end": f"{view.end_s:.2f}",
        "marks": [{"step": it.step, "at": percent(it.close_s - view.begin_s)} for it in view.steps],
        "lanes": [
            {
                "name": name_of(lane),
                "host": lane.host,
                "idle": f"{lane.idle:.0%}",
                "segments": list(segments(lane)),
                "beside": [_beside(it, view.begin_s, percent) for it in lane.beside],
            }
            for lane in view.lanes
        ],
        "steps": [
            {
                "step": it.step,
                "seconds": f"{it.close_s - it.open_s:.2f}",
                "idle": f"{sum(it.idle.values()) / len(it.idle):.0%}" if it.idle else "",
                "path": path_of(it),
            }
            for it in view.steps
        ],
    }


def _beside(it: Beside, begin_s: float, percent: Callable[[float], float]) -> dict[str, Any]:
    length_s = it.end_s - it.begin_s
    return {
        "kind": it.kind,
        "left": percent(it.begin_s - begin_s),
        "width": percent(length_s),
        "title": f"{it.kind} of {it.name}, step {it.step}: {it.begin_s:.3f} s, for {length_s:.3f} s",
    }
