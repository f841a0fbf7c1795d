"""Pages of HTML that fetch nothing: one file each, readable without scripts, light and dark as the reader has it.

What texts hold is shown, never obeyed: all is escaped, what steers a terminal or turns writing around is written out,
and the page's policy lets nothing but its own styles in, and scripts of the digests that it names.
"""

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from hpcrl.foreign import plain

COLOURS = 10
"""Of calls, again and again."""

SKELETON = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'{{ scripts }}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
:root { color-scheme: light dark; --ink: #24292f; --quiet: #6b7177; --line: #8884; --card: #8881; --bad: #c0392b;
  --c0: #0b6e99; --c1: #d9730d; --c2: #0f7b6c; --c3: #ad1a72; --c4: #6940a5; --c5: #b59000; --c6: #e03e3e;
  --c7: #5b7083; --c8: #2f9e44; --c9: #8d6748; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e3; --quiet: #9aa0a6; --bad: #ff7b72; --c0: #4fb0d8;
  --c1: #f0a04b; --c2: #4fc4b0; --c3: #e86bb4; --c4: #a98be0; --c5: #dcc04a; --c6: #ff8080; --c7: #9db3c6;
  --c8: #69d27d; --c9: #c4a17f; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 75rem; margin: 1.5rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.35rem; margin: 0 0 .3rem; overflow-wrap: anywhere; } h2 { font-size: 1.05rem; margin: 0 0 .6rem; }
h3 { font-size: .9rem; margin: 1rem 0 .3rem; overflow-wrap: anywhere; }
section { border-top: 1px solid var(--line); padding: 1.1rem 0; }
.quiet { color: var(--quiet); } .bad { color: var(--bad); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--quiet); font-weight: 500; } th, td { padding: .15rem .9rem .15rem 0;
  vertical-align: top; border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.5 ui-monospace, monospace; margin: .3rem 0; }
details > summary { cursor: pointer; color: var(--quiet); }
.lane { display: flex; align-items: center; gap: .5rem; font-size: .75rem; min-width: 36rem; }
.lane > b { flex: 0 0 5.5rem; font-weight: 500; overflow: hidden; white-space: nowrap; }
.lane > i { flex: 0 0 2.6rem; font-style: normal; text-align: right; color: var(--quiet); }
.bar { position: relative; flex: 1; height: 1.1rem; background: var(--card); border-bottom: 1px solid var(--line); }
.bar > s { position: absolute; top: 1px; bottom: 1px; min-width: 1px; text-decoration: none; }
.bar > u { position: absolute; top: 0; bottom: 0; border-left: 1px dashed var(--quiet); }
.bar > em { position: absolute; right: calc(100% - var(--at)); padding-right: .2rem; font-style: normal;
  color: var(--quiet); white-space: nowrap; }
.replay { opacity: .45; }
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


def page(title: str, body: str, *, styles: str = "", script: str = "") -> str:
    """A whole page. `body`, `styles` and `script` are markup of hpcrl's own: see `markup`."""
    from markupsafe import Markup

    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    values = {
        "title": title,
        "body": Markup(body),
        "styles": Markup(styles),
        "script": Markup(script),
        "scripts": Markup(f"; script-src 'sha256-{digest}'") if script else "",
        "colours": COLOURS,
    }
    return markup(SKELETON, values)


def markup(template: str, values: Mapping[str, Any]) -> str:
    """A template of jinja2 filled in. Whatever text comes in is escaped; only `Markup` is taken as it is."""
    # Whoever looks at numbers only waits for no template.
    from jinja2 import Environment

    return Environment(autoescape=True, finalize=_neutral, trim_blocks=True).from_string(template).render(values)


def _neutral(value: Any) -> Any:
    return plain(value) if type(value) is str else value
