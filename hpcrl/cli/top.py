"""`hpcrl top RUN`: a run as it goes on."""

import time
from collections.abc import Sequence

from hpcrl.cli.arguments import RUN_HELP, asks_for_help, command_parser, find_run, parse
from hpcrl.config.experiment import what_every_run_has
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.inspect.progress import DRAW_EVERY_S, Progress
from hpcrl.inspect.views.status import is_over


def run(words: Sequence[str]) -> int:
    parser = command_parser(
        "top",
        "Show a run live, as `hpcrl submit` does: steps, curves, what each worker does, calls that hang. Works on any "
        "machine that sees the run's directory, until the run has ended; Ctrl-C ends this view, not the run.",
    )
    parser.add_argument("run", type=str, help=RUN_HELP)
    if asks_for_help(words):
        print(parser.format_help())
        return int(ExitCode.DONE)
    run_dir = RunDirectory.look(find_run(parse(parser, words).run))
    with Progress(run_dir, what_every_run_has(run_dir.configuration())) as progress:
        try:
            while not is_over(run_dir):
                progress.update()
                time.sleep(DRAW_EVERY_S)
        except KeyboardInterrupt:
            progress.note("the run goes on")
    return int(ExitCode.DONE)
