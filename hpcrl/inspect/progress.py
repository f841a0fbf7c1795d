"""What `hpcrl submit` shows while it waits: a live panel on a terminal, else one line now and then."""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.durable.origin import forked_from
from hpcrl.durable.rundir import RunDirectory
from hpcrl.foreign import plain
from hpcrl.inspect.activity import Activity
from hpcrl.inspect.cause_text import in_a_line
from hpcrl.inspect.metrics import figures, last, series
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.views.stalls import stalls_of
from hpcrl.inspect.views.why import cause_of
from hpcrl.inspect.words import duration, quantity

DRAW_EVERY_S = 0.4
LINE_EVERY_S = 5.0
WORKERS_SHOWN = 16
FIGURES_IN_A_LINE = 5
SPARKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 40


class Progress:
    """Shows a run to whoever waits for it. Reads the run directory only, and may go at any time."""

    def __init__(
        self,
        run: RunDirectory,
        experiment: ExperimentConfig,
        console: Console | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._view = RunReader(run)
        self._control = experiment.control
        self._console = console or Console(highlight=False)
        self._clock = clock
        self._began = clock()
        self._note = ""
        self._drawn_at = 0.0
        self._announced = set(self._view.activities)
        self._last_news: list[str] = []
        self._last_line_at = 0.0
        self._last_line = ""
        self._live: Live | None = None

    def __enter__(self) -> "Progress":
        if self._console.is_terminal:
            self._live = Live(self._panel(), console=self._console, auto_refresh=False, transient=False)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._view.update()
        if self._live is not None:
            self._live.update(self._panel(), refresh=True)
            self._live.stop()
        else:
            self._print_line()

    @property
    def _steps(self) -> int | None:
        """How many steps the run has; of a run of epochs its master says it when it has read the data."""
        return self._view.length(self._control.steps, self._control.epochs)

    def update(self) -> None:
        """Show what has happened since the last call. Call it as often as you like."""
        if self._live is not None and self._clock() - self._drawn_at < DRAW_EVERY_S:
            return
        self._drawn_at = self._clock()
        self._view.update()
        if self._live is not None:
            self._last_news = self._news() or self._last_news
            self._live.update(self._panel(), refresh=True)
            return
        self._print_news()
        if self._clock() - self._last_line_at >= LINE_EVERY_S:
            self._print_line()

    def note(self, text: str) -> None:
        """Tell the user something that is not in the run directory."""
        self._note = text
        if self._live is None:
            self._console.print(Text(plain(text)))

    def _news(self) -> list[str]:
        """What is to be said of attempts that have begun since the last call."""
        activities = self._view.activities
        new = [number for number, it in sorted(activities.items()) if it.recovered and number not in self._announced]
        self._announced.update(new)
        news = []
        for number in new:
            before = activities.get(number - 1)
            if before is not None:
                if not (number == 1 and forked_from(self._view.run)):
                    cause = cause_of(self._view.run, number - 1)
                    news.append(f"attempt {number - 1} ended, {'killed' if cause is None else in_a_line(cause)}")
                news.append(f"attempt {number} {_in_short(activities[number].recovered)}")
        return news

    # ── without a terminal ────────────────────────────────────────────────────────────────────────────────────────────
    def _print_news(self) -> None:
        """Say of each new attempt why the one before it ended, and where it goes on."""
        for text in self._news():
            self._console.print(Text(plain(f"{self._now()}  {text}")), soft_wrap=True)

    def _print_line(self) -> None:
        """One line with the newest step, if there is anything new."""
        line = "  ".join([_steps(self._view.step, self._steps), *self._figures(), *self._pace()])
        activity = self._view.newest
        if not self._view.rows():
            line = "waiting for the workers" if activity is None or activity.ready is None else "step 1 is running"
        self._last_line_at = self._clock()
        if line != self._last_line:
            self._last_line = line
            self._console.print(Text(plain(f"{self._now()}  {line}")), soft_wrap=True)

    def _figures(self) -> list[str]:
        rows = self._view.rows()
        shown = figures(rows, self._view.right_at)[:FIGURES_IN_A_LINE]
        return [figure.said(last(rows, figure.key)) for figure in shown]

    def _pace(self) -> list[str]:
        activity = self._view.newest
        pace = activity.pace() if activity is not None else None
        if pace is None:
            return []
        rate = f"{quantity(pace.tokens_per_s)} tokens/s" if pace.tokens_per_s else f"{pace.samples_per_s:.3g} samples/s"
        if self._steps is None or self._view.step >= self._steps:
            return [rate]
        return [rate, f"ETA {duration(max(0, self._steps - self._view.step) * pace.seconds_per_step)}"]

    def _now(self) -> str:
        return time.strftime("%H:%M:%S", time.localtime(self._clock()))

    # ── on a terminal ─────────────────────────────────────────────────────────────────────────────────────────────────
    def _panel(self) -> RenderableType:
        activity = self._view.newest or Activity()
        parts: list[RenderableType] = [self._bar()]
        if self._view.rows():
            parts += [Text(), self._figure_table()]
        parts += [Text(), Text(plain(activity.ending)) if activity.ending else _workers(activity)]
        if stalled := [str(stall) for stall in stalls_of(self._view.run, activity) if not activity.ending]:
            parts += [Text(), Text(plain("\n".join(f"stalled: {stall}" for stall in stalled)), style="red")]
        if self._last_news:
            parts += [Text(), Text(plain("\n".join(self._last_news)), style="yellow")]
        if self._note:
            parts += [Text(), Text(plain(self._note), style="yellow")]
        title = Text.assemble(
            (plain(self._view.run.root.name), "bold"), f" · attempt {activity.attempt} · ", (_phase(activity), "cyan")
        )
        return Panel(Group(*parts), title=title, title_align="left", border_style="dim", padding=(0, 1))

    def _bar(self) -> RenderableType:
        row = Table.grid(padding=(0, 2), expand=True)
        for ratio in (None, 1, None, None):
            row.add_column(ratio=ratio, no_wrap=True)
        bar = ProgressBar(
            total=self._steps, completed=self._view.step, pulse=self._steps is None, complete_style="cyan"
        )
        row.add_row(
            _steps(self._view.step, self._steps),
            bar,
            duration(self._clock() - self._began),
            " · ".join(self._pace()),
        )
        return row

    def _figure_table(self) -> RenderableType:
        """Per figure: its first value, its newest, and its course."""
        table = Table.grid(padding=(0, 2))
        for justify in ("left", "right", "left", "left"):
            table.add_column(justify=justify, no_wrap=True)
        rows = self._view.rows()
        for figure in figures(rows, self._view.right_at):
            steps, values = series(rows, figure.key)
            if values:
                newest = figure.show(values[-1]) + ("" if steps[-1] == rows[-1]["step"] else f" (step {steps[-1]})")
                first = Text(f"{figure.show(values[0])} →", style="dim")
                table.add_row(Text(plain(figure.label)), first, newest, Text(sparkline(values), style="cyan"))
        return table


def sparkline(values: Sequence[float], width: int = SPARK_WIDTH) -> str:
    """The course of all values in `width` characters, each the mean of its share; of what is no number, a gap."""
    cells = min(width, len(values))
    means = []
    for cell in range(cells):
        share = values[cell * len(values) // cells : (cell + 1) * len(values) // cells]
        means.append(sum(share) / len(share))
    finite = [mean for mean in means if math.isfinite(mean)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[round((mean - low) * scale)] if math.isfinite(mean) else " " for mean in means)


def _workers(activity: Activity) -> RenderableType:
    """What each worker does; of many, how many do what."""
    if not activity.ranks:
        nodes = ", ".join(f"{node} ({host})" for node, host in sorted(activity.nodes.items()))
        return Text(
            plain(f"waiting for the workers of node {nodes}") if nodes else "waiting for the nodes", style="dim"
        )
    if len(activity.ranks) > WORKERS_SHOWN:
        counts = Counter(activity.doing(rank) for rank in activity.ranks)
        return Text(plain(", ".join(f"{doing} ×{count}" for doing, count in counts.most_common())), style="dim")
    table = Table.grid(padding=(0, 2))
    for rank in activity.ranks:
        doing = activity.doing(rank)
        style = "red" if doing.startswith("ended") else "dim" if doing == "idle" else "green"
        table.add_row(Text(f"worker-{rank}", style="dim"), Text(plain(doing), style=style))
    return table


def _in_short(recovered: str) -> str:
    """A description of a recovery in one line: each of its lines up to the details."""
    return "; ".join(line.partition(":")[0] for line in recovered.splitlines())


def _phase(activity: Activity) -> str:
    return "paused" if activity.paused and activity.phase == "running" else activity.phase


def _steps(step: int, steps: int | None) -> str:
    return f"step {step}" if steps is None else f"step {step}/{steps}"
