"""The report: one page that has all views, fetches nothing, and obeys nothing that is written in it."""

import base64
import hashlib
import json
import math
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.kept_run import response, write_lines, write_step
from support.made_run import MadeRun, ended_run, ppo_row

from hpcrl.cli import inspect
from hpcrl.durable.journal import Adopted, encode_line
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.events import AttemptEnded, CallFailed, WorkerEnded
from hpcrl.inspect.pages import table
from hpcrl.inspect.plots import MOST_POINTS, thinned
from hpcrl.inspect.report_markup import SCRIPT
from hpcrl.inspect.view_tables import Table

HOSTILE = "<script>alert(1)</script>\"'</pre></details>\x1b[31m\x1b]0;t\x07\u202e[bold]{{ 7*7 }}{% raw %}$\\frac"


def with_samples(made: MadeRun, step: int, count: int, text: str = "") -> None:
    """Rewards are 0, 1, …"""
    rows = {
        f"{i}@0": response(f"ask {i}{text}", f"say {i}{text}", reward=float(i), advantages=[1.0, -1.0] * 99,
                           details={"error": text}, record={"odd": text})
        for i in range(count)
    }  # fmt: skip
    made.run.adopted(0).write_bytes(encode_line(Adopted((), {})))
    write_lines(made.run, 0, [write_step(made.run, 0, step, rows)])


def page_of(made: MadeRun, folder: Path) -> str:
    out = folder / "report.html"
    assert inspect.run([str(made.run.root), "report", "--html", str(out)]) == ExitCode.DONE
    return out.read_text()


class Tags(HTMLParser):
    """What a browser would see: tags that are opened and closed, attributes that fetch or run, texts of headings."""

    VOID = ("meta", "br", "path_", "use_")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.suspicious: list[tuple[str, str, str | None]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name.startswith("on") or (name in ("src", "href", "xlink:href") and not (value or "").startswith("#")):
                self.suspicious.append((tag, name, value))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, tag


def test_a_page_has_cause_curves_worst_samples_and_all_tables(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    made.steps(0, 20)
    with_samples(made, 20, 12)
    made.verdict("failed", 66, "the reward raised")
    page = page_of(made, tmp_path)
    tags = Tags(page)
    assert tags.open == [] and tags.suspicious == [] and tags.count["svg"] == 5 and tags.count["script"] == 1
    order = [
        "Why attempt 0 failed</h2>",
        "<h2>Curves",
        "<h2>Samples of step 20",
        "The lowest rewards",
        "The highest rewards",
        "5 more samples",
        "<h2>Where the time went",
        "Timeline of",
    ]
    assert sorted(order, key=page.index) == order and "cause" in page
    seen, _, more = page.partition("5 more samples")
    worst, _, best = seen.partition("The highest rewards")
    found = [re.findall(r"(?m)^ask (\d+)<", part) for part in (worst, best, more)]
    assert found == [["0", "1", "2"], ["11", "10"], ["3", "4", "9", "8", "7"]] and page.count('class="u3"') == 11
    assert "No worker was waited for" in page and page.index("By step; ") < page.index("<svg")
    assert "prefers-color-scheme: dark" in page and "<details" in page and "var(--c0)" in page


def test_only_the_pages_own_script_may_run_and_nothing_is_fetched(tmp_path: Path) -> None:
    page = page_of(ended_run(tmp_path / "run"), tmp_path)
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    assert script == [SCRIPT] and len(SCRIPT) < 10_000
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert f'content="{policy}"' in page
    assert set(re.findall(r"https?://[^\"' ]+", page)) <= {
        "http://www.w3.org/1999/xlink", "http://www.w3.org/2000/svg"
    }  # fmt: skip


def test_a_sum_is_below_the_rows_that_the_script_sorts() -> None:
    made = Table(("of", "seconds"), [("idle", ("2 s", 2.0)), ("load", ("1 s", 1.0))], total=("in all", ("3 s", 3.0)))
    body, _, foot = str(table(made, "times")).partition("</tbody>")
    assert "in all" not in body and re.search(r"<tfoot><tr>\s*<td class=\"text\">in all</td>", foot)
    assert "body.rows" in SCRIPT and "tBodies" in SCRIPT


def test_a_command_is_broken_at_spaces_alone_and_said_once(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "a-run")
    made.begin()
    made.step(1)
    made.write(CallFailed(0, "step 2 rew_inf, part 0", "`x` is not `hpcrl stop`", exit_code=66))
    made.verdict("failed", 66, "worker-0 raised")
    page = page_of(made, tmp_path)
    words = ["hpcrl", "resume", str(made.run.root), "--accept-changed", "reward.function"]
    assert page.count(f"<code>{' '.join(f'<span>{word}</span>' for word in words)}</code>") == 1
    assert "<code><span>--accept-changed</span></code>" in page
    assert "`x` is not <code><span>hpcrl</span> <span>stop</span></code>" in page


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_script_is_a_script(tmp_path: Path) -> None:
    (tmp_path / "script.js").write_text(SCRIPT)
    subprocess.run(["node", "--check", str(tmp_path / "script.js")], check=True)


def test_what_texts_errors_metrics_and_names_hold_is_shown_and_never_obeyed(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "<script>alert(2)<")
    made.begin()
    made.step(1)
    made.close(2, {**ppo_row(2), HOSTILE: 1.0})
    with_samples(made, 2, 3, HOSTILE)
    made.verdict("failed", 66, HOSTILE)
    page = page_of(made, tmp_path)
    tags = Tags(page)
    assert tags.open == [] and tags.suspicious == [] and tags.count["script"] == 1
    assert re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", page) is None and "{{ 7*7 }}" in page
    assert "&lt;script&gt;alert(1)" in page


def test_of_a_run_with_unknown_metrics_each_has_a_curve_under_its_name_as_it_stands(tmp_path: Path) -> None:
    """Dollars are no formula; hundreds of metrics are a table of a row each; a number that is none breaks nothing."""
    made = MadeRun(tmp_path / "run")
    made.begin()
    names = ["a$\\frac$", "b_{$c", HOSTILE, *(f"metric_{i}" for i in range(400))]
    for step in (1, 2, 3):
        made.close(step, {"step": step, **dict.fromkeys(names, float(step)), "metric_7": math.nan})
    page = page_of(made, tmp_path)
    tags = Tags(page)
    assert tags.open == [] and tags.suspicious == [] and tags.count["figure"] == 4 and "all 403 metrics" in page
    assert "<b>a$\\frac$</b>" in page and "<b>b_{$c</b>" in page and page.count(">metric_399</td>") == 1


def test_an_axis_of_a_constant_shows_no_rounding_errors(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    for step in range(1, 50):
        made.close(step, {"step": step, "constant": 0.1 * 3})
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", page_of(made, tmp_path))
    assert labels and max(map(len, labels)) < 8


def test_attempts_that_were_made_up_for_are_told_below_the_newest_one(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    for attempt in range(3):
        made.begin()
        made.steps(attempt * 5, attempt * 5 + 4)
        made.write(WorkerEnded(1, attempt, "killed by SIGKILL", "x"))
        made.write(AttemptEnded("lost", "worker-1: killed by SIGKILL"))
    made.begin()
    made.steps(15, 20)
    made.verdict("done", 0, "step 20 was the last")
    page = page_of(made, tmp_path)
    order = [
        "<h2>Why attempt 2 ended early; attempt 3 went on",
        "<li>attempt 0: node failure, after step 4</li>",
        "<li>attempt 3: done, after step 20</li>",
        "why 2 earlier attempts ended",
        "Why attempt 0 ended",
    ]
    assert sorted(order, key=page.index) == order and '<span class="good">done' in page


def test_a_report_of_a_thousand_steps_is_small_and_keeps_curves_short(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run", steps=1300)
    made.begin()
    made.steps(1, 1300)
    with_samples(made, 1300, 20, "x" * 50_000)
    page = page_of(made, tmp_path)
    assert len(page.encode()) < 5e6
    longest = max(len(re.findall(r"[ML] ", path)) for path in re.findall(r'<path d="([^"]*)"', page))
    assert 20 < longest <= MOST_POINTS


def test_a_thinned_curve_keeps_ends_and_extremes() -> None:
    steps = list(range(12_345))
    values = [math.sin(step / 700) for step in steps]
    values[7_777], values[1_234] = 99.0, -99.0
    kept_steps, kept = thinned(steps, values)
    assert len(kept) <= MOST_POINTS and kept_steps == sorted(set(kept_steps))
    assert (kept_steps[0], kept_steps[-1]) == (0, 12_344) and {99.0, -99.0} <= set(kept)
    assert all(values[step] == value for step, value in zip(kept_steps, kept, strict=True))
    assert thinned(steps[:1000], values[:1000]) == (steps[:1000], values[:1000])


def test_a_report_says_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step has closed, no sample is kept, matplotlib is not there."""
    made = MadeRun(tmp_path / "run")
    made.begin()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = page_of(made, tmp_path)
    for sentence in (
        "No step has closed yet.",
        "No step has kept a sample that has a reward.",
        "No step has been meas",
    ):
        assert sentence in page
    made.steps(0, 1)
    assert "matplotlib is not" in page_of(made, tmp_path) and Tags(page).open == []


def test_a_damaged_archive_is_named_in_the_place_of_its_samples(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    made.steps(1, 2)
    with_samples(made, 2, 3)
    path = made.run.archive(2, 0)
    path.write_bytes(path.read_bytes()[:-1])
    assert "step-00000002.a000.h5 has" in page_of(made, tmp_path)


def test_the_command_needs_a_file_for_the_page_and_prints_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(ended_run(tmp_path / "run").run.root)
    with pytest.raises(ConfigurationError, match=r"The view report is a page\. Name it: --html FILE\."):
        inspect.run([root, "report"])
    assert inspect.run([root, "report", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["step"] == 60
    assert inspect.run([root, "report", "--json", "--html", str(tmp_path / "x.html")]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) and printed.err == f"{tmp_path / 'x.html'}\n" and (tmp_path / "x.html").exists()
    with pytest.raises(ConfigurationError, match="The view steps takes no --html"):
        inspect.run([root, "steps", "--html", "x"])
