"""`hpcrl mirror RUN --to PROGRAM`: a run's curves in the files of TensorBoard or Weights & Biases."""

import time
from collections.abc import Sequence
from pathlib import Path

from hpcrl.cli.arguments import RUN_HELP, asks_for_help, command_parser, find_run, parse
from hpcrl.cli.outputs import writable
from hpcrl.cli.run_end import end_of
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.inspect.mirrors.mirror import LOOK_S, PROGRAMS, Told, mirroring


def run(words: Sequence[str]) -> int:
    parser = command_parser(
        "mirror",
        "Copy a run's curves into the files of TensorBoard, or of W&B (offline: nothing is sent). Do it again whenever "
        "you like: a step is written once. To have it done while the run goes on: control.mirror.",
    )
    parser.add_argument("run", type=str, help=RUN_HELP)
    parser.add_argument("--to", type=str, default="tensorboard", metavar="PROGRAM", help=" or ".join(PROGRAMS))
    parser.add_argument("--follow", action="store_true", help="go on until the run has ended")
    parser.add_argument(
        "--out", type=str | None, default=None, metavar="FOLDER", help="where to; by default RUN/mirror/PROGRAM"
    )
    if asks_for_help(words):
        print(parser.format_help())
        return int(ExitCode.DONE)
    given = parse(parser, words)
    if given.to not in PROGRAMS:
        raise ConfigurationError(
            [f"{given.to} is no program that runs are mirrored to."], f"Give one of {', '.join(PROGRAMS)}."
        )
    run_dir = RunDirectory.look(find_run(given.run))
    folder = run_dir.mirror(given.to) if given.out is None else Path(given.out).absolute()
    with writable("--out", folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with mirroring(given.to, run_dir, folder) as mirror:
        told, has_ended = Told(run_dir, mirror), end_of(run_dir)
        while True:
            over = not given.follow or has_ended()
            if new := told.look(over):
                print(f"{new} new steps, up to step {max(mirror.steps)}", flush=True)
            if over:
                break
            time.sleep(LOOK_S)
    print(f"{len(mirror.steps)} steps are in {folder}\nLook at them with: {mirror.how_to_look}")
    return int(ExitCode.DONE)
