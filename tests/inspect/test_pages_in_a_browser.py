"""Pages as Chromium shows them: nothing sticks out on a phone, nothing is asked for, all can be read in both themes."""

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import CHROMIUM, Browser
from support.kept_run import response, write_lines, write_step
from support.made_run import MadeRun, ppo_row

from hpcrl.cli import inspect, samples
from hpcrl.durable.journal import Adopted, encode_line
from hpcrl.events import CallFailed

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (CONTRIBUTING.md says how to get it)")

RUDE = "<script>alert(1)</script></pre>\x1b[31m\u202e مرحبا 👩‍👩‍👧 $\\frac$ "
HOSTILE = RUDE + "Donaudampfschifffahrt" * 60 + "\n" * 3
PAGES = ("report", "samples", "timeline")

OVERFLOW = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
CONTRASTS = """
(() => {
  const parts = colour => (colour.match(/[0-9.]+/g) ?? []).map(Number);
  const over = ([r, g, b, a = 1], under) => [r, g, b].map((part, i) => a * part + (1 - a) * under[i]);
  const light = rgb => rgb.map(part => part / 255).map(p => p <= 0.04045 ? p / 12.92 : ((p + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
  const canvas = document.createElement("div");
  canvas.style.background = "Canvas";
  document.body.append(canvas);
  const paper = parts(getComputedStyle(canvas).backgroundColor);
  canvas.remove();
  const own = of => parts(getComputedStyle(of).backgroundColor);
  const behind = of => of === null ? paper : over(own(of), behind(of.parentElement));
  const found = {};
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const of = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !of.checkVisibility() || of.closest("script, style")) continue;
    const under = behind(of), svg = of.closest("svg") !== null, style = getComputedStyle(of);
    const [one, other] = [light(over(parts(svg ? style.fill : style.color), under)), light(under)];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    const name = `${of.tagName}.${of.className.baseVal ?? of.className}`;
    found[name] = Math.min(found[name] ?? 99, ratio);
  }
  return found;
})()
"""
STROKES = """
[...document.querySelectorAll(".curves path")].map(path => getComputedStyle(path).stroke).filter(it => it !== "none")
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run that failed after two attempts, whose texts, names and metrics are hostile."""
    folder = tmp_path_factory.mktemp("pages")
    made = MadeRun(folder / f"run-{'x' * 60}", steps=60)
    made.begin()
    made.steps(0, 9)
    made.begin()
    for step in range(10, 40):
        made.step(step)
    made.close(40, ppo_row(40) | {f"metric_{i:02d}_{'y' * 90}": math.sin(i) for i in range(50)})
    rows = {
        f"{i}@0": response(f"ask {i} {HOSTILE}", f"say {i} {HOSTILE}", reward=float(i), advantages=advantages(i),
                           record={"answer": HOSTILE}, **({"details": {"error": HOSTILE}} if i == 9 else {}))
        for i in range(12)
    }  # fmt: skip
    made.run.adopted(1).write_bytes(encode_line(Adopted((), {})))
    write_lines(made.run, 1, [write_step(made.run, 1, 40, rows)])
    made.write(CallFailed(1, "step 41 rew_inf, part 0", f"a reason {HOSTILE}", "Traceback\n"))
    made.verdict("failed", 66, "worker-1 raised")
    root = str(made.run.root)
    assert inspect.run([root, "report", "--html", str(folder / "report.html")]) == 0
    assert inspect.run([root, "timeline", "--html", str(folder / "timeline.html")]) == 0
    assert samples.run([root, "--html", str(folder / "samples.html")]) == 0
    return folder


def advantages(i: int) -> list[float]:
    return [math.sin(k / 5) for k in range(len(f"say {i} {HOSTILE}"))]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_sticks_out_nothing_complains_and_nothing_is_asked_for(
    name: str, width: int, pages: Path, browser: Browser
) -> None:
    page = pages / f"{name}.html"
    browser.open(page, width=width)
    assert browser.ask("innerWidth") == width
    for _ in range(2):
        whole, seen = browser.ask(OVERFLOW)
        assert whole <= seen
        browser.ask("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert browser.requests == [page.as_uri()] and browser.complaints == []


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_can_be_told_from_its_background(name: str, theme: str, pages: Path, browser: Browser) -> None:
    """WCAG AA: 4.5 to 1, tokens on their shades too."""
    browser.open(pages / f"{name}.html", width=1280, theme=theme)
    assert browser.ask("matchMedia('(prefers-color-scheme: dark)').matches") == (theme == "dark")
    browser.ask("document.querySelectorAll('details').forEach(each => each.open = true)")
    found = browser.ask(CONTRASTS)
    assert len(found) > 5 and {where: ratio for where, ratio in found.items() if ratio < 4.5} == {}


def test_a_report_is_read_without_scripts(pages: Path, browser: Browser) -> None:
    """Cause, curves and the worst sample are seen as the page opens."""
    browser.open(pages / "report.html", width=390, theme="dark", scripts=False)
    said = browser.ask("document.body.innerText")
    order = ["failed", "Why attempt 1 failed", "cause: user's code", "a reason <script>alert(1)", "hpcrl resume",
             "Thin: each step", "Samples of step 40", "reward 0", "ask 0 <script>", "say 0 <script>"]  # fmt: skip
    assert sorted(order, key=said.index) == order and "ask 4" not in said
    curves = browser.ask("[...document.querySelectorAll('.curves svg')].map(it => it.getBoundingClientRect().width)")
    assert len(curves) == 5 and all(300 < width <= 390 for width in curves)
    smallest = (
        "Math.min(...[...document.querySelectorAll('.curves text')].map(it => it.getBoundingClientRect().height))"
    )
    assert browser.ask(smallest) >= 10
    assert browser.ask("document.querySelectorAll('th button').length") == 0
    strokes = {tuple(map(int, re.findall(r"\d+", colour)[:3])) for colour in browser.ask(STROKES)}
    assert strokes and (0, 0, 0) not in strokes


def test_the_script_sorts_a_table_by_the_column_that_is_clicked(pages: Path, browser: Browser) -> None:
    browser.open(pages / "report.html", width=1280)
    column = "[...document.querySelectorAll('[aria-label=\"all metrics\"] tbody tr')].map(it => it.cells[%d].innerText)"
    button = "document.querySelectorAll('[aria-label=\"all metrics\"] th button')[%d].click()"
    browser.ask("document.querySelectorAll('details').forEach(each => each.open = true)")
    names = browser.ask(column % 0)
    browser.ask(button % 0)
    assert browser.ask(column % 0) == sorted(names, key=str.casefold) != names
    browser.ask(button % 2)
    browser.ask(button % 2)
    numbers = [float(text) for text in browser.ask(column % 2)]
    assert numbers == sorted(numbers, reverse=True) and len(numbers) > 50
    assert browser.ask("document.querySelectorAll('[aria-sort=descending]').length") == 1
