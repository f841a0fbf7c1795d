"""The report as one page of HTML: cause, curves, worst samples, then all tables. Fetches nothing; a script of its own
sorts tables, and all is there without it.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from hpcrl.errors import MissingExtraError
from hpcrl.inspect.cause_text import error_of, folded
from hpcrl.inspect.glossary import GLOSSARY
from hpcrl.inspect.lines import Row
from hpcrl.inspect.metrics import BESIDES, series
from hpcrl.inspect.pages import QUOTED_COMMANDS, command, markup, page, spoken, table
from hpcrl.inspect.plots import Drawn, panels_of_a_page, smoothed_over
from hpcrl.inspect.progress import sparkline
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.report_markup import PAGE, SCRIPT, STYLES
from hpcrl.inspect.sample_markup import DATA, samples_markup, scale, shades_are
from hpcrl.inspect.sample_markup import STYLES as SAMPLE_STYLES
from hpcrl.inspect.settings_text import in_short, settings_section
from hpcrl.inspect.timeline_page import MOST_SEGMENTS, timeline_body
from hpcrl.inspect.verdicts import VERDICTS
from hpcrl.inspect.view_tables import (
    Table,
    attempts_table,
    calls_table,
    courses_table,
    exclude_advice,
    facts_of,
    ledger_table,
    memory_table,
    nodes_table,
    over_all_table,
    steps_table,
    stragglers_table,
    wall_time,
    workers_table,
)
from hpcrl.inspect.views.report import Ends, Report
from hpcrl.inspect.views.stragglers import Stragglers
from hpcrl.inspect.views.summary import Summary
from hpcrl.inspect.views.why import Cause
from hpcrl.inspect.words import counted

TEXT_SHOWN = 4000
"""Characters of a text of a sample; `hpcrl samples` has all."""
ATTEMPTS_SAID = 12
EARLIER_SHOWN = 20
"""Causes beside the newest."""
FACTS_ABOVE = 7
"""The others are the page's end."""
FACTS_BEFORE_TIME = 4
METRICS_SHOWN = 1000
WORST_SHOWN, BEST_SHOWN = 3, 2
"""Samples that are seen without a click."""
COURSE_WIDTH = 24
ACCURACY = "/accuracy"
VERBS = {"failed": "failed", "killed": "was killed"}
CARETS = re.compile(r"\s+[~^]+")
KINDS = {"done": "good", "failed": "bad", "killed": "bad"}
"""Of states; others are neither."""


def report_page(view: Report, reader: RunReader) -> str:
    """The page; curves are drawn from the rows that the reader has."""
    whole, state = view.summary, _state(view)
    causes = [_cause(it, state) for it in view.why.causes]
    facts = list(facts_of(whole).items())
    facts.insert(FACTS_BEFORE_TIME, ("wall time", wall_time(whole.elapsed)))
    values = {
        "name": whole.name,
        "state": state,
        "kind": KINDS.get(state, ""),
        "reason": "" if view.why.causes and not view.why.causes[0].continued else spoken(whole.reason),
        "facts": [(name, spoken(fact)) for name, fact in facts[:FACTS_ABOVE]],
        "rest": [(name, spoken(fact)) for name, fact in facts[FACTS_ABOVE:]],
        "attempts_said": _attempts_said(view, state),
        "causes": causes[: 1 + EARLIER_SHOWN],
        "earlier": _earlier(len(causes) - 1),
        "worth_a_look": view.worth_a_look,
        **_curves(reader, whole),
        **_samples(view.samples, whole.where.run_dir),
        **settings_section(view.settings),
        **_times(view),
        "timeline": _timeline(view),
        "glossary": GLOSSARY,
        "tables": list(_tables(view)),
        "hints": [(command(it), what) for it, what in whole.hints.items() if it not in _said_above(view)],
    }
    return page(f"{whole.name}: {state}", markup(PAGE, values), styles=STYLES + SAMPLE_STYLES, script=SCRIPT)


def _state(view: Report) -> str:
    """That of its verdict; one that left none was killed, or has not ended."""
    causes = [it for it in view.why.causes if not it.continued and it.kind != "waiting for Slurm"]
    return view.summary.state or ("killed" if causes else "not ended")


def _said_above(view: Report) -> tuple[str, ...]:
    """Commands that the page has elsewhere, or whose result it shows."""
    return f"hpcrl inspect {view.summary.where.run_dir} --plot", *(it.next for it in view.why.causes[:1])


# ── why ───────────────────────────────────────────────────────────────────────────────────────────────────────────────
def _cause(it: Cause, state: str) -> dict[str, Any]:
    """Everything that `why` says of it, under names; what the verdict means and what to do, as the docs say it."""
    is_bad = not it.continued and state in VERBS
    title = "the start" if it.attempt is None else f"attempt {it.attempt}"
    verb = VERBS[state] if is_bad else "is waiting" if it.kind == "waiting for Slurm" else "ended early"
    went_on = f"; attempt {it.attempt + 1} went on" if it.continued and it.attempt is not None else ""
    who = " in ".join(part for part in (it.who, it.where) if part)
    evidence = "\n".join(f"{at.file}{f':{at.line}' if at.line else ''}  {at.text}" for at in it.evidence)
    when = "" if it.time is None else f"{datetime.fromtimestamp(it.time, UTC):%Y-%m-%d %H:%M:%S} UTC"
    facts = [
        ("where", who, ""),
        ("when", when, ""),
        ("what happened", spoken(_without_carets(it.said), QUOTED_COMMANDS), "pre"),
        ("in your code", _without_carets(it.frames), "pre"),
        ("means", spoken(VERDICTS[it.kind].means), ""),
        ("edit", it.edit, "edit"),
        ("what to do", "" if it.continued else spoken(VERDICTS[it.kind].do), ""),
        ("then type", it.next and command(it.next), ""),
        ("evidence", evidence, "pre"),
        ("followed from it", folded(it), ""),
    ]
    return {
        "title": f"Why {title} {verb}{went_on}",
        "head": f"cause: {it.verdict} ({it.confidence})",
        "is_bad": is_bad,
        "facts": [fact for fact in facts if fact[1]],
        "traceback": it.traceback,
    }


def _attempts_said(view: Report, state: str) -> list[str]:
    """What each attempt came to, where there are several, and what was changed before it."""
    attempts = view.summary.elapsed.attempts
    causes = {it.attempt: it for it in view.why.causes}
    changed = {it.version: in_short(it) for it in view.settings.versions}
    errors: dict[str, int] = {}
    said, version = [], 0
    for it in attempts:
        end = ", ".join(part for part in (it.verdict, it.who) if part)
        end = end or (state if it is attempts[-1] else "done")
        end += "" if it.last_step is None else f", after step {it.last_step}"
        if error := error_of(causes[it.attempt]) if it.attempt in causes else "":
            same = errors.setdefault(error, it.attempt)
            end += f": {error}" if same == it.attempt else f": the same error at the same place as in attempt {same}"
        with_ = f", with {changed[it.settings]}" if it.settings != version and it.settings in changed else ""
        version = it.settings
        said.append(f"attempt {it.attempt}{with_}: {end}")
    return said[-ATTEMPTS_SAID:] if len(attempts) > 1 else []


def _earlier(count: int) -> str:
    title = f"why {counted(count, 'earlier attempt')} ended early"
    return title if count <= EARLIER_SHOWN else f"{title}: the newest {EARLIER_SHOWN}, all in hpcrl inspect RUN why"


def _without_carets(text: str) -> str:
    """Lines that point at a part of the line above point at nothing where lines are broken."""
    return "\n".join(line for line in text.rstrip().splitlines() if not CARETS.fullmatch(line))


# ── curves ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def _curves(reader: RunReader, view: Summary) -> dict[str, Any]:
    rows = reader.rows()
    names = list(dict.fromkeys(name for row in rows for name in row if name not in BESIDES))
    found: dict[str, Any] = {
        "curves": [],
        "no_curves": "No step has been measured yet.",
        "courses": table(courses_table(view.courses), "metrics") if view.courses else "",
        "over_all": table(over_all_table(view.over_all), "means over all steps") if view.over_all else "",
        "all_metrics": table(_all_metrics(rows, names, reader.right_at), "all metrics") if names else "",
        "all_metrics_count": len(names),
        "drawn_how": _drawn_how(rows, reader),
    }
    try:
        found["curves"] = [_curve(drawn) for drawn in panels_of_a_page(reader)]
    except MissingExtraError as error:
        found["no_curves"] = str(error)
    return found


def _curve(drawn: Drawn) -> dict[str, Any]:
    from markupsafe import Markup

    legend = [(label, colour, f"step {step}: {value:.4g}") for label, colour, step, value in drawn.legend]
    return {"title": drawn.title, "svg": Markup(drawn.svg), "legend": legend}


def _drawn_how(rows: Sequence[Row], reader: RunReader) -> str:
    """What lines are, beside the curves' own colours."""
    width = smoothed_over(len(rows))
    said = ["By step; beside each name is its value in the last step that has one."]
    if width > 1:
        said.append(f"Thin: each step. Thick: the mean over {width} steps around it. Points: evaluations.")
    if reader.restarts():
        said.append("Dotted, upright: another attempt went on from here.")
    if reader.seen.settings:
        said.append("Solid, upright: another attempt went on, with other settings or code; Settings below says which.")
    return " ".join(said)


def _all_metrics(rows: Sequence[Row], names: Sequence[str], right_at: float) -> Table:
    made: list[Sequence[Any]] = []
    for name in names[:METRICS_SHOWN]:
        steps, values = series(rows, name)
        if values:
            numbers = (values[0], values[-1], min(values), max(values))
            cells = ((f"{number:.4g}", number) for number in numbers)
            made.append((name, sparkline(values, COURSE_WIDTH), *cells, (f"{steps[0]}–{steps[-1]}", steps[0])))
    more = len(names) - METRICS_SHOWN
    notes = ["first, last, least, most: of one step, where the table above has means of several"]
    if any(name.endswith(ACCURACY) for name in names):
        notes.append(f"…{ACCURACY}: the share of responses whose reward is {right_at:g} or more (reward.right_at)")
    notes += [f"{more} more: hpcrl inspect RUN steps --csv"] if more > 0 else []
    return Table(("metric", "curve", "first", "last", "least", "most", "steps"), made, tuple(notes))


# ── samples ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def _samples(view: Ends, run_dir: str) -> dict[str, Any]:
    shown = [*view.failed, *view.worst, *view.best]
    said = view.lacks
    if shown:
        said = (
            f"{counted(view.of, 'sample')} of this step {'is' if view.of == 1 else 'are'} kept{_of_which(view)}; "
            f"{len(shown)} {'is' if len(shown) == 1 else 'are'} shown here. {shades_are(shown)} "
            f"All of them: `hpcrl samples {run_dir} --step {view.step} --sort reward`"
        )
    groups = (
        ("Samples whose reward failed", view.failed[:WORST_SHOWN]),
        ("The lowest rewards", view.worst[:WORST_SHOWN]),
        ("The highest rewards", view.best[:BEST_SHOWN]),
    )
    more = [*view.failed[WORST_SHOWN:], *view.worst[WORST_SHOWN:], *view.best[BEST_SHOWN:]]
    return {
        "step": view.step,
        "about_samples": spoken(said),
        "scale": scale(shown),
        "samples": [(title, samples_markup(found, TEXT_SHOWN)) for title, found in groups if found],
        "more_samples": samples_markup(more, TEXT_SHOWN) if more else "",
        "more_count": counted(len(more), "more sample"),
    }


def _of_which(view: Ends) -> str:
    """How many are of which data, where they are of several."""
    counts = [f"{count} of {DATA.get(name, name)}" for name, count in view.by_data.items()]
    return f" ({', '.join(counts)})" if len(counts) > 1 else ""


# ── where the time went, and the rest ─────────────────────────────────────────────────────────────────────────────────
def _times(view: Report) -> dict[str, Any]:
    elapsed, calls = view.summary.elapsed, view.summary.calls
    return {
        "ledger": table(ledger_table(elapsed), "wall time") if elapsed.ledger.wall else "",
        "slowest": _slowest(view.stragglers) if calls else "",
        "calls": table(calls_table(calls), "calls") if calls else "",
        "attempts": table(attempts_table(elapsed.attempts), "attempts") if elapsed.attempts else "",
    }


def _slowest(view: Stragglers) -> str:
    """Who was waited for most."""
    if not view.workers:
        return "No worker was waited for: none was much slower than the others."
    it = view.workers[0]
    node = f" on {it.node}" if it.node else ""
    often = f"it was the slowest in {it.slowest} of {it.calls} calls"
    return f"Slowest: worker-{it.worker}{node}. Others waited {it.waited_s:.1f} s for it; {often}."


def _timeline(view: Report) -> Any:
    if view.timeline is None:
        return "No step has closed yet."
    count = sum(len(lane.segments) for attempt in view.timeline.attempts for lane in attempt.lanes)
    if count > MOST_SEGMENTS:
        return "There are more bars than fit a page: see hpcrl inspect RUN timeline."
    return timeline_body(view.timeline)


def _tables(view: Report) -> Iterator[tuple[str, Any, str]]:
    """Title, table and what is said above it; folded."""
    found = (
        (f"The last {counted(len(view.steps.steps), 'step')}", steps_table(view.steps), ""),
        ("Workers that others waited for", stragglers_table(view.stragglers), exclude_advice(view.stragglers)),
        ("Memory by call", memory_table(view.memory), ""),
        ("Nodes", nodes_table(view.resources), ""),
        ("Workers", workers_table(view.resources), ""),
    )
    return ((title, table(of, title), said) for title, of, said in found if of.rows)
