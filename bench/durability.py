"""What a demo's PPO run has waited for durability, from the rows of costs that its master wrote.

Charged is all of the time in which the master was appending to the journal (it neither hears nor sends then), whether a
worker was idle meanwhile or not, and the time in which nothing was being executed and a step was open: an upper bound.
"""

from pathlib import Path

from demo_runs import events_of, last_demo, moment
from figures import Figure
from spans import length, shared, united

from hpcrl.inspect.reader import RunReader


def durability(demos: Path) -> list[Figure]:
    run = last_demo(demos)
    events = list(events_of(run))
    whole = moment(events, "closed", max) - moment(events, "opened", min)
    [attempt] = RunReader(run).attempts.values()
    rows, spans = attempt.costs(), united((it.span.sent_s, it.span.ended_s) for it in attempt.made())
    appends, seconds = (sum(numbers) for numbers in zip(*(row.appends for row in rows), strict=True))
    open_ = united((row.at_s - row.seconds, row.at_s) for row in rows)
    waited = seconds + length(open_) - shared(open_, spans)
    return [
        Figure(
            "workers' time waited for durability, of all step time",
            100 * waited / whole,
            "%",
            "≤ 5",
            f"{waited:.2f} s in {whole:.0f} s, {len(rows)} steps",
        ),
        Figure(
            "the master's time in appends to the journal, of all step time",
            100 * seconds / whole,
            "%",
            "",
            f"{appends} appends, {seconds:.2f} s",
        ),
        Figure("an append to the journal, with fsync", seconds / max(1, appends) * 1e3, "ms", "", f"of {appends}"),
    ]
