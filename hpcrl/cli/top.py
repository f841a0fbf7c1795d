"""`hpcrl top RUN`: a run as it goes on."""

import time
from collections.abc import Callable, Sequence

from hpcrl.cli.arguments import RUN_HELP, asks_for_help, command_parser, find_run, parse
from hpcrl.cli.run_end import end_of
from hpcrl.config.experiment import what_every_run_has
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.inspect.progress import DRAW_EVERY_S, Progress
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.shown_settings import shown_settings
from hpcrl.inspect.terminal import show
from hpcrl.inspect.views.summary import summary


def run(words: Sequence[str]) -> int:
    parser = command_parser(
        "top",
        "Show a run live, as `hpcrl submit` does: steps, curves, what each worker does, calls that hang. Works on any "
        "machine that sees the run's directory, until the run has ended, and then says what it came to; Ctrl-C ends "
        "this view, not the run.",
    )
    parser.add_argument("run", type=str, help=RUN_HELP)
    if asks_for_help(words):
        print(parser.format_help())
        return int(ExitCode.DONE)
    run_dir = RunDirectory.look(find_run(parse(parser, words).run))
    has_ended = end_of(run_dir)
    if has_ended() or _watch(run_dir, has_ended):
        show(summary(RunReader(run_dir)))
    return int(ExitCode.DONE)


def _watch(run_dir: RunDirectory, has_ended: Callable[[], bool]) -> bool:
    """Whether it has ended; else the user wants to see no more of it."""
    with Progress(run_dir, what_every_run_has(shown_settings(run_dir))) as progress:
        try:
            while not has_ended():
                progress.update()
                time.sleep(DRAW_EVERY_S)
        except KeyboardInterrupt:
            progress.note("the run goes on")
            return False
    return True
