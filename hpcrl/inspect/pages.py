"""Pages of HTML that fetch nothing: one file each, readable without scripts, light and dark as the reader has it.

What texts hold is shown, never obeyed: all is escaped, what steers a terminal or turns writing around is written out,
and the page's policy lets nothing but its own styles in, and scripts of the digests that it names.
"""

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpcrl.foreign import plain
from hpcrl.inspect.view_tables import Cell, Table

if TYPE_CHECKING:
    from markupsafe import Markup

COLOURS = 10
"""Of calls, again and again."""
QUOTED = re.compile(r"`([^`\n]+)`|\bhpcrl (?:samples|inspect|logs|resume|status) [^\n]*$")
QUOTED_COMMANDS = re.compile(r"`(hpcrl [^`\n]+)`")
"""In texts that are not hpcrl's own, and may have backticks of their own."""

SKELETON = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'{{ scripts }}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
:root { color-scheme: light dark; --ink: #24292f; --quiet: #5f666d; --line: #8884; --card: #8881; --bad: #b3261e;
  --good: #1a7f37;
  --c0: #0b6e99; --c1: #d9730d; --c2: #0f7b6c; --c3: #ad1a72; --c4: #6940a5; --c5: #b59000; --c6: #e03e3e;
  --c7: #5b7083; --c8: #2f9e44; --c9: #8d6748; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e3; --quiet: #9aa0a6; --bad: #ff7b72;
  --good: #56d364; --c0: #4fb0d8;
  --c1: #f0a04b; --c2: #4fc4b0; --c3: #e86bb4; --c4: #a98be0; --c5: #dcc04a; --c6: #ff8080; --c7: #9db3c6;
  --c8: #69d27d; --c9: #c4a17f; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 75rem; margin: 1.5rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.35rem; margin: 0 0 .3rem; overflow-wrap: anywhere; } h2 { font-size: 1.15rem; margin: 0 0 .6rem; }
h3 { font-size: .95rem; margin: 1rem 0 .3rem; overflow-wrap: anywhere; }
section { border-top: 1px solid var(--line); padding: 1.1rem 0; }
p { overflow-wrap: anywhere; }
.quiet { color: var(--quiet); } .bad { color: var(--bad); } .good { color: var(--good); }
.wide { overflow-x: auto; margin-bottom: .5rem; background: linear-gradient(to right, Canvas 40%, transparent) 0 0,
  linear-gradient(to left, Canvas 40%, transparent) 100% 0, linear-gradient(to right, var(--quiet), transparent) 0 0,
  linear-gradient(to left, var(--quiet), transparent) 100% 0; background-repeat: no-repeat;
  background-size: 2.5rem 100%, 2.5rem 100%, .7rem 100%, .7rem 100%;
  background-attachment: local, local, scroll, scroll; }
 .note { margin: 0 0 .2rem; font-size: .8rem; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--quiet); font-weight: 500; vertical-align: text-bottom; }
td { vertical-align: top; white-space: nowrap; }
th, td { padding: .15rem .9rem .15rem 0; border-bottom: 1px solid var(--line); }
td.text { white-space: normal; max-width: 44rem; min-width: 6rem; overflow-wrap: break-word; }
td.text.long { min-width: 16rem; } td:last-child, th:last-child { padding-right: .2rem; }
td.number, th.number { text-align: right; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1.2rem; margin: .6rem 0; font-size: .9rem; }
dt { color: var(--quiet); } dd { margin: 0; overflow-wrap: anywhere; min-width: 0; }
@media (max-width: 32rem) { th, td { padding-right: .5rem; } table { font-size: .8rem; }
  td.several { white-space: normal; } td.text { min-width: 4.5rem; }
  td.text.long { min-width: 8.5rem; } dl:not(.short) { grid-template-columns: 1fr; gap: 0; }
  dl:not(.short) dd { margin-bottom: .35rem; } }
pre, code { font: 13px/1.5 ui-monospace, monospace; }
code { display: inline-block; max-width: 100%; overflow-x: auto; vertical-align: bottom; }
code > span { white-space: nowrap; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0; tab-size: 4; max-height: 20rem;
  overflow-y: auto; }
details > summary { cursor: pointer; color: var(--quiet); }
:focus-visible { outline: 2px solid var(--c0); outline-offset: 2px; }
@media print { :root { color-scheme: light; } body { margin: 0; max-width: none; font-size: 10pt; }
  nav { display: none; } article, figure, tr { break-inside: avoid; }
  .wide, pre { overflow: visible; max-height: none; } }
.lane + .wide { margin-top: .5rem; }
.lane { display: flex; align-items: center; gap: .5rem; font-size: .75rem; }
.lane > b { flex: 0 0 8rem; font-weight: 500; display: flex; justify-content: space-between; white-space: nowrap; }
.lane > b > i { font-style: normal; font-weight: 400; color: var(--quiet); }
@media (max-width: 32rem) { .lane { font-size: .7rem; } .lane > b { flex-basis: 6.2rem; } }
.bar { position: relative; flex: 1; min-width: 0;
  height: 1.1rem; background: var(--card); border-bottom: 1px solid var(--line); }
.bar > s { position: absolute; top: 1px; bottom: 1px; min-width: 1px; text-decoration: none; }
.beside > .bar { height: .35rem; border: 0; background: none; }
s.save { background: var(--ink); }
s.spill { background: repeating-linear-gradient(90deg, var(--ink) 0 2px, transparent 2px 4px); }
s.release { background: var(--quiet); }
.bar > u { position: absolute; top: 0; bottom: 0; border-left: 1px dashed var(--quiet); }
.bar > em { position: absolute; right: calc(100% - var(--at)); padding-right: .2rem; font-style: normal;
  color: var(--quiet); white-space: nowrap; }
.replay { opacity: .45; }
s.unfinished { outline: 2px solid var(--ink); outline-offset: -2px; min-width: 4px; }
.key > s.unfinished { background: none; }
.key { display: inline-block; margin-right: .9rem; font-size: .8rem; white-space: nowrap; }
.key > s { display: inline-block; width: .8em; height: .8em; margin-right: .3em; }
{% for number in range(colours) %}.c{{ number }} { background: var(--c{{ number }}); }
{% endfor %}{{ styles }}</style>
</head>
<body>
{{ body }}
{% if script %}<script>{{ script }}</script>
{% endif %}</body>
</html>
"""


TABLE = """<div class="wide"><table aria-label="{{ label }}"><thead><tr>
{% for name, kind in columns %}<th scope="col"{% if kind %} class="{{ kind }}"{% endif %}>{{ name }}</th>{% endfor %}
</tr></thead><tbody>
{% for row in rows %}
<tr>{% for text, value, kind in row %}<td class="{{ kind }}"
{%- if value is not none %} data-value="{{ value }}"{% endif %}>{{ text }}</td>{% endfor %}</tr>
{% endfor %}
</tbody>{% if total %}<tfoot><tr>{% for text, value, kind in total %}
<td class="{{ kind }}">{{ text }}</td>{% endfor %}</tr></tfoot>{% endif %}</table></div>
{% for note in notes %}
<p class="quiet note">{{ note }}</p>
{% endfor %}
"""
WITH_UNIT = re.compile(r"(\d) (?=[a-zA-Z])")
LONG = 24
"""Characters from which a text gets a wide column."""


def table(of: Table, label: str) -> "Markup":
    """A table that is scrolled alone where it is wider than the page."""
    kinds = ["number" if of.is_number(number) else "" for number in range(len(of.columns))]
    values = {
        "label": label,
        "columns": list(zip(of.columns, kinds, strict=True)),
        "rows": [[_cell(cell, kind) for cell, kind in zip(row, kinds, strict=True)] for row in of.rows],
        "total": [_cell(cell, kind) for cell, kind in zip(of.total, kinds, strict=True)] if of.total else [],
        "notes": of.notes,
    }
    return markup(TABLE, values)


def _cell(cell: Cell, kind: str) -> tuple[str, float | None, str]:
    if isinstance(cell, tuple):
        several = " several" if ", " in cell[0] else ""
        text = WITH_UNIT.sub("\\1\N{NO-BREAK SPACE}", cell[0]).replace("–", "\N{WORD JOINER}–\N{WORD JOINER}")
        return text, cell[1], kind + several
    return cell, None, kind or ("text long" if len(cell) > LONG else "text")


def page(title: str, body: "Markup", *, styles: str = "", script: str = "") -> str:
    """A whole page. `styles` and `script` are hpcrl's own."""
    from markupsafe import Markup

    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    values = {
        "title": title,
        "body": body,
        "styles": Markup(styles),
        "script": Markup(script),
        "scripts": Markup(f"; script-src 'sha256-{digest}'") if script else "",
        "colours": COLOURS,
    }
    return markup(SKELETON, values)


def markup(template: str, values: Mapping[str, Any]) -> "Markup":
    """A template of jinja2 filled in. Whatever text comes in is escaped; only `Markup` is taken as it is."""
    # Whoever looks at numbers only waits for no template.
    from jinja2 import Environment
    from markupsafe import Markup

    made = Environment(autoescape=True, finalize=_neutral, trim_blocks=True).from_string(template)
    return Markup(made.render(values))


def _neutral(value: Any) -> Any:
    return plain(value) if type(value) is str else value


def command(text: str) -> "Markup":
    """As code, whose lines are broken at spaces alone."""
    from markupsafe import Markup, escape

    return Markup("<code>{}</code>").format(
        Markup(" ").join(Markup(f"<span>{escape(plain(it))}</span>") for it in text.split(" "))
    )


def spoken(text: str, quoted: re.Pattern[str] = QUOTED) -> "Markup":
    """A text with the commands in it as code: those in backticks, and one to its end."""
    from markupsafe import Markup, escape

    at, parts = 0, []
    for found in quoted.finditer(text):
        parts += [escape(plain(text[at : found.start()])), command(found[1] or found[0])]
        at = found.end()
    return Markup("").join([*parts, escape(plain(text[at:]))])
