"""The report's page, before anything is filled in: its template, its styles, and the script that sorts tables."""

STYLES = """
header h1 { font-size: 1.6rem; }
nav { display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; margin: .8rem 0; font-size: .9rem; }
a { color: var(--c0); }
.verdict { border-left: 4px solid var(--line); padding-left: .9rem; } .verdict.failed { border-color: var(--bad); }
.verdict + h3 { margin-top: 1.4rem; }
.verdict + details { margin-top: .6rem; }
#settings dl { grid-template-columns: 1fr; } #settings dd { margin-bottom: .5rem; }
.verdict details pre { max-height: none; }
.verdict h3 { margin: 0; font-size: 1.05rem; }
.curves { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(19rem, 100%), 1fr)); gap: 1.2rem; }
figure { margin: 0; min-width: 0; display: flex; flex-direction: column; justify-content: space-between; }
figcaption { font-size: .85rem; } figcaption b { display: block; font-weight: 600; }
.curves svg { display: block; width: 100%; height: auto; } .curves text { fill: var(--ink); }
.curves .key { white-space: normal; margin-right: .8rem; } .key > s { border-radius: 2px; }
#why ul { margin: 0 0 .8rem; padding-left: 1.1rem; } tfoot td { font-weight: 600; }
.course { letter-spacing: -1px; white-space: nowrap; color: var(--c0); }
th button { all: unset; cursor: pointer; } th button:focus-visible { outline: 2px solid var(--c0); }
th button::after { content: "\\a0↕"; opacity: .5; }
th[aria-sort=ascending] button::after { content: "\\a0↑"; opacity: 1; }
th[aria-sort=descending] button::after { content: "\\a0↓"; opacity: 1; }
"""

SCRIPT = """
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  if (body.rows.length < 3) continue;
  const heads = [...table.querySelectorAll("thead th")];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach(each => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const rows = [...body.rows];
      rows.sort((one, other) => {
        const [a, b] = [value(one), value(other)];
        if (a === "" || b === "") return (a === "") - (b === "");
        const difference = isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
        return down ? -difference : difference;
      });
      body.append(...rows);
    });
  });
}
"""

PAGE = """
{% macro why(cause) %}
<div class="verdict {{ 'failed' if cause.is_bad else '' }}">
<h3{% if cause.is_bad %} class="bad"{% endif %}>{{ cause.head }}</h3>
<dl>
{% for name, text, kind in cause.facts %}
<dt>{{ name }}</dt><dd>{% if kind == 'pre' %}<pre>
{{ text }}</pre>{% elif kind == 'edit' %}<b>{{ text.file }}, line {{ text.line }}</b>
{% if text.text %}<pre>
{{ text.text }}</pre>{% endif %}<span class="quiet">The run has executed a copy of this file. Leave the copy as it
is.</span>{% else %}{{ text }}{% endif %}</dd>
{% endfor %}
</dl>
{% if cause.traceback %}<details><summary>the whole traceback, hpcrl's frames too</summary><pre>
{{ cause.traceback }}</pre></details>{% endif %}
</div>
{% endmacro %}
<header>
<h1>{{ name }}: <span class="{{ kind }}">{{ state }}</span></h1>
{% if reason %}<p>{{ reason }}</p>{% endif %}
<dl class="short">
{% for name, fact in facts %}
<dt>{{ name }}</dt><dd>{{ fact }}</dd>
{% endfor %}
</dl>
<nav aria-label="On this page">
{% if causes %}<a href="#why">{{ causes[0].title }}</a>{% endif %}
<a href="#curves">Curves</a>
<a href="#samples">Samples</a>
<a href="#settings">Settings</a>
<a href="#time">Where the time went</a>
<a href="#timeline">Timeline</a>
{% if tables %}<a href="#tables">Steps, memory, nodes</a>{% endif %}
<a href="#next">What to try next</a>
<a href="#words">Words</a>
</nav>
</header>
<main>
{% if causes %}
<section id="why"><h2>{{ causes[0].title }}</h2>
{% if attempts_said %}<ul>{% for it in attempts_said %}<li>{{ it }}</li>{% endfor %}</ul>{% endif %}

{{ why(causes[0]) }}
{% if causes[1:] %}
<details><summary>{{ earlier }}</summary>
{% for cause in causes[1:] %}
<h3>{{ cause.title }}</h3>
{{ why(cause) }}
{% endfor %}
</details>
{% endif %}
</section>
{% endif %}
<section id="curves"><h2>Curves</h2>
{% if worth_a_look %}<p><b>Worth a look</b></p>
<ul>{% for it in worth_a_look %}<li>{{ it }}</li>{% endfor %}</ul>{% endif %}
{% if curves %}<p class="quiet">{{ drawn_how }}</p>
<div class="curves">
{% for curve in curves %}
<figure><figcaption><b>{{ curve.title }}</b>
{% for label, colour, value in curve.legend %}<span class="key"><s style="background: var(--{{ colour }})"></s>
{{- label }}<span class="quiet">{{ " · " if label }}{{ value }}</span></span>{% endfor %}
</figcaption>{{ curve.svg }}</figure>
{% endfor %}
</div>
{% else %}<p class="quiet">{{ no_curves }}</p>{% endif %}
{{ courses }}{{ over_all }}
{% if all_metrics %}
<details><summary>all {{ all_metrics_count }} metrics</summary>{{ all_metrics }}</details>
{% endif %}
</section>
<section id="samples"><h2>Samples{% if step is not none %} of step {{ step }}{% endif %}</h2>
<p class="quiet">{{ about_samples }}</p>
{{ scale }}
{% for title, them in samples %}
<h3>{{ title }}</h3>{{ them }}
{% endfor %}
{% if more_samples %}<details><summary>{{ more_count }}</summary>
{{ more_samples }}</details>{% endif %}
</section>
<section id="settings"><h2>Settings</h2>
{{ own_settings }}
<details><summary>all {{ settings_count }} settings</summary>{{ every_setting }}</details>
{% if versions %}
<h3>What was changed later</h3>
<dl>
{% for it in versions %}
<dt>settings {{ it.version }}, {{ it.since }}</dt><dd>
{% for line in it.changes %}<div>{{ line }}</div>{% endfor %}
{% for file, lines in it.code %}<div>{{ file }}</div>
{% if lines %}<pre>
{{ lines }}</pre>{% endif %}{% endfor %}
</dd>
{% endfor %}
</dl>
{% endif %}
</section>
<section id="time"><h2>Where the time went</h2>
{% if ledger %}{{ ledger }}{% else %}<p class="quiet">No process has begun yet.</p>{% endif %}
{% if slowest %}<p>{{ slowest }}</p>{% endif %}
{% if calls %}<h3>By call</h3>{{ calls }}{% endif %}
{% if attempts %}<h3>By attempt</h3>{{ attempts }}{% endif %}
</section>
<section id="timeline"><h2>Timeline of the last steps that ended</h2>{{ timeline }}</section>
<section id="tables"><h2>Steps, memory, nodes</h2>
{% for title, of, said in tables %}
<details{{ ' open' if said else '' }}><summary>{{ title }}</summary>
{% if said %}<p>{{ said }}</p>{% endif %}{{ of }}</details>
{% endfor %}
</section>
<section id="next"><h2>What to try next</h2>
<dl>
{% for command, what in hints %}
<dt>{{ what }}</dt><dd>{{ command }}</dd>
{% endfor %}
</dl>
{% if rest %}
<h3>More about the run</h3>
<dl>
{% for name, fact in rest %}
<dt>{{ name }}</dt><dd>{{ fact }}</dd>
{% endfor %}
</dl>
{% endif %}
</section>
<section id="words"><details><summary>The words on this page</summary>
<dl>
{% for word, meaning in glossary %}
<dt>{{ word }}</dt><dd>{{ meaning }}</dd>
{% endfor %}
</dl>
</details></section>
</main>
"""
