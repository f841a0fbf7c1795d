"""The report as one page of HTML: cause, curves, worst samples, then all tables. Fetches nothing; a script of its own
sorts tables, and all is there without it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from hpcrl.errors import MissingExtraError
from hpcrl.inspect.archives import Sample
from hpcrl.inspect.cause_text import cause_lines
from hpcrl.inspect.metrics import Figure
from hpcrl.inspect.pages import markup, page
from hpcrl.inspect.plots import panels_as_svg
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.sample_texts import headline
from hpcrl.inspect.timeline_page import MOST_SEGMENTS, timeline_body
from hpcrl.inspect.views.report import Report
from hpcrl.inspect.views.samples import pieces
from hpcrl.inspect.views.summary import Summary
from hpcrl.inspect.words import duration, quantity
from hpcrl.placement.sizes import size_in_words

TEXT_SHOWN = 4000
"""Characters of a text of a sample; `hpcrl samples` has all."""

STYLES = """
.curves { display: grid; grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)); gap: 1rem; }
.curves svg { width: 100%; height: auto; }
.curves text { fill: var(--ink); }
.up { background: rgba(46, 160, 67, .3); } .down { background: rgba(218, 54, 51, .3); }
.sortable th { cursor: pointer; } th[aria-sort=ascending]::after { content: " ↑"; }
th[aria-sort=descending]::after { content: " ↓"; }
"""

SCRIPT = """
for (const table of document.querySelectorAll("table")) {
  table.classList.add("sortable");
  const heads = [...table.querySelectorAll("thead th")];
  heads.forEach((head, column) => head.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach(each => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const rows = [...table.tBodies[0].rows];
    rows.sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      const difference = a !== "" && b !== "" && !isNaN(a) && !isNaN(b) ? a - b : a.localeCompare(b);
      return down ? -difference : difference;
    });
    table.tBodies[0].append(...rows);
  }));
}
"""

PAGE = """{% macro table(of) %}
<div class="wide"><table><thead><tr>
{% for name in of.columns %}<th>{{ name }}</th>{% endfor %}
</tr></thead><tbody>
{% for row in of.rows %}
<tr>{% for cell in row %}<td{% if cell.value is not none %} class="number" data-value="{{ cell.value }}"{% endif %}>
{{- cell.text }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% endmacro %}
{% macro sample(it) %}
<h3>{{ it.headline }}</h3>
{% for name, text in it.texts %}<pre class="quiet" title="{{ name }}">{{ text }}</pre>
{% endfor %}<pre>
{%- for text, shade in it.pieces %}{% if shade %}<span class="{{ shade }}">{{ text }}</span>
{%- else %}{{ text }}{% endif %}{% endfor %}</pre>
{% if it.error %}<pre class="bad">{{ it.error }}</pre>{% endif %}
<details><summary>row</summary><pre>{{ it.record }}</pre></details>
{% endmacro %}
<h1>{{ name }}: <span class="{{ 'bad' if failed else '' }}">{{ state }}</span></h1>
<p class="quiet">{{ reason }}</p>
{{ table(facts) }}
{% for cause in causes %}
<section><h2 class="{{ 'bad' if loop.first and failed else '' }}">Why {{ cause.title }} ended</h2>
<pre>{{ cause.text }}</pre>
{% if cause.traceback %}<details><summary>all frames</summary><pre>{{ cause.traceback }}</pre></details>{% endif %}
</section>
{% endfor %}
<section><h2>Curves</h2>
{% if curves %}<div class="curves">{% for curve in curves %}<div>{{ curve }}</div>{% endfor %}</div>
{% else %}<p class="quiet">{{ no_curves }}</p>{% endif %}
{{ table(courses) }}
</section>
<section><h2>Worst samples{% if step is not none %} of step {{ step }}{% endif %}</h2>
{% if lacks %}<p class="quiet">{{ lacks }}</p>{% endif %}
{% for it in worst %}{{ sample(it) }}{% endfor %}
{% if best %}<details><summary>the best samples of the same step</summary>
{% for it in best %}{{ sample(it) }}{% endfor %}</details>{% endif %}
</section>
<section><h2>Where the time went</h2>{{ table(ledger) }}<h3>by call</h3>{{ table(calls) }}
<h3>attempts</h3>{{ table(attempts) }}</section>
<section><h2>Timeline of the last steps</h2>{{ timeline }}</section>
{% for title, of, open in tables %}
<section><details{{ ' open' if open else '' }}><summary>{{ title }}</summary>{{ table(of) }}</details></section>
{% endfor %}
"""


def report_page(view: Report, reader: RunReader) -> str:
    """The page; curves are drawn from the rows that the reader has."""
    from markupsafe import Markup

    whole = view.summary
    curves, no_curves = _curves(reader)
    values = {
        "name": whole.name,
        "state": whole.state or "no verdict",
        "failed": whole.state == "failed",
        "reason": whole.reason,
        "facts": _facts(whole),
        "causes": [_cause(cause) for cause in view.why.causes],
        "curves": [Markup(curve) for curve in curves],
        "no_curves": no_curves,
        "courses": _courses(whole),
        "step": view.samples.step,
        "lacks": view.samples.lacks,
        "worst": [_sample(it) for it in view.samples.worst],
        "best": [_sample(it) for it in view.samples.best],
        "ledger": _ledger(whole),
        "calls": _calls(whole),
        "attempts": _attempts(whole),
        "timeline": Markup(_timeline(view)),
        "tables": _tables(view),
    }
    return page(f"Report of {whole.name}", markup(PAGE, values), styles=STYLES, script=SCRIPT)


def _curves(reader: RunReader) -> tuple[list[str], str]:
    try:
        return panels_as_svg(reader), "No step has been measured yet."
    except MissingExtraError as error:
        return [], str(error)


def _timeline(view: Report) -> str:
    if view.timeline is None:
        return "No step has closed yet."
    count = sum(len(lane.segments) for attempt in view.timeline.attempts for lane in attempt.lanes)
    if count > MOST_SEGMENTS:
        return "There are more bars than fit a page: see hpcrl inspect RUN timeline."
    return timeline_body(view.timeline)


# ── tables ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def table_of(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> dict[str, Any]:
    """A cell is a text, a number, or (text, number by which it is sorted)."""
    return {"columns": columns, "rows": [[_cell(cell) for cell in row] for row in rows]}


def _cell(cell: Any) -> dict[str, Any]:
    if isinstance(cell, tuple):
        return {"text": cell[0], "value": cell[1]}
    if isinstance(cell, int | float):
        return {"text": str(cell) if isinstance(cell, int) else f"{cell:.4g}", "value": cell}
    return {"text": "" if cell is None else str(cell), "value": None}


def _facts(view: Summary) -> dict[str, Any]:
    steps = f"{view.step}" + ("" if view.steps is None else f" of {view.steps}")
    facts = {"steps": steps, "time": duration(view.speed.seconds), "restarts": str(view.elapsed.restarts)}
    if view.speed.samples_per_s is not None:
        facts["samples a second"] = quantity(view.speed.samples_per_s)
    facts["run directory"] = view.where.run_dir
    return table_of(list(facts), [list(facts.values())])


def _cause(cause: Any) -> dict[str, str]:
    title = "the start" if cause.attempt is None else f"attempt {cause.attempt}"
    return {"title": title, "text": "\n".join(cause_lines(cause)), "traceback": cause.traceback}


def _courses(view: Summary) -> dict[str, Any]:
    def shown(course: Any, value: float | None) -> Any:
        figure = Figure(course.label, course.metric, course.decimals)
        return "" if value is None else (figure.show(value), value)

    rows = [
        (it.label, *(shown(it, value) for value in (it.first, it.last, it.best)), f"{it.first_step}–{it.last_step}")
        for it in view.courses
    ]
    return table_of(("metric", "first", "last", "best", "steps"), rows)


def _ledger(view: Summary) -> dict[str, Any]:
    it = view.elapsed.ledger
    seconds = {name: number for name, number in msgspec.to_builtins(it).items() if name != "wall"}
    rows = [(name, (duration(number), number), f"{number / (it.wall or 1):.0%}") for name, number in seconds.items()]
    return table_of(("wall time", "", "share"), [*rows, ("together", (duration(it.wall), it.wall), "")])


def _calls(view: Summary) -> dict[str, Any]:
    total = sum(call.workers_s for call in view.calls) or 1.0
    rows = [(it.name, it.parts, it.workers_s, f"{it.workers_s / total:.0%}", it.tokens) for it in view.calls]
    return table_of(("call", "parts", "seconds of all workers", "share", "tokens"), rows)


def _attempts(view: Summary) -> dict[str, Any]:
    rows = [
        (it.attempt, f"{it.first_step}–{it.last_step}" if it.first_step is not None else "",
         (duration(it.seconds), it.seconds), it.lost_s, ", ".join(filter(None, (it.verdict, it.who))))
        for it in view.elapsed.attempts
    ]  # fmt: skip
    return table_of(("attempt", "steps", "time", "seconds of lost work", "ended by"), rows)


def _tables(view: Report) -> list[tuple[str, dict[str, Any], bool]]:
    names = list(dict.fromkeys(name for step in view.steps.steps for name in step.metrics if name != "step"))
    rows = [
        (it.step, it.attempt, it.seconds, it.tokens, *(it.metrics.get(name, "") for name in names))
        for it in view.steps.steps
    ]
    steps = table_of(("step", "attempt", "seconds", "tokens", *names), rows)
    waits = [(f"worker-{it.worker}", it.node, it.waited_s, it.slowest, it.calls) for it in view.stragglers.workers]
    nodes = [(it.attempt, it.host, _size(it.used), _size(it.limit), _size(it.free)) for it in view.resources.nodes]
    memory = [(it.name, _size(it.expected), _size(it.peak)) for it in view.memory.calls]
    found = [
        (f"The last {len(rows)} steps", steps, False),
        ("Stragglers", table_of(("worker", "node", "waited for, s", "slowest of", "calls"), waits), bool(waits)),
        ("Nodes", table_of(("attempt", "node", "memory", "of", "disk left"), nodes), False),
        ("Memory", table_of(("call", "expected", "measured"), memory), False),
    ]
    return [(title, of, is_open) for title, of, is_open in found if of["rows"]]


def _size(size: float | None) -> Any:
    return "" if size is None else (size_in_words(size), size)


# ── samples ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def _sample(it: Sample) -> Mapping[str, Any]:
    """Texts are cut; the response's tokens have the side of zero on which their advantage or log-ratio is."""
    shown, left = list[tuple[str, str]](), TEXT_SHOWN
    for text, share in pieces(it):
        if left > 0 and text:
            shown.append((text[:left], "up" if share > 0.15 else "down" if share < -0.15 else ""))
        left -= len(text)
    if left < 0:
        shown.append((f" … {-left} characters more", ""))
    record = msgspec.json.format(msgspec.json.encode(it.record)).decode()
    texts = [(name, text[:TEXT_SHOWN]) for name, text in it.texts.items() if name != "response"]
    error, row = it.error[:TEXT_SHOWN], record[:TEXT_SHOWN]
    return {"headline": headline(it), "texts": texts, "pieces": shown, "error": error, "record": row}
