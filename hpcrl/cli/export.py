"""`hpcrl export RUN`: trained roles in Hugging Face format, out of a checkpoint."""

import sys
from collections.abc import Sequence
from pathlib import Path

from hpcrl.cli.arguments import RUN_HELP, command_parser, find_run, parse
from hpcrl.errors import ExitCode
from hpcrl.launch.export import plan_exports


def run(words: Sequence[str]) -> int:
    parser = command_parser(
        "export",
        "Write the trained roles of a checkpoint in Hugging Face format, as transformers and vLLM load them. The run "
        "may be running, stopped or lost; neither its cluster nor a GPU is needed, only the folder of the base model.",
    )
    parser.add_argument("run", type=str, help=RUN_HELP)
    parser.add_argument(
        "--step", type=int | None, default=None, help="the step whose checkpoint is written; null: the newest"
    )
    parser.add_argument(
        "--role", type=str | None, default=None, help="the role that is written; null: all trained ones"
    )
    parser.add_argument(
        "--out", type=str | None, default=None, help="the folder to make; null: RUN/export/<role>/step-<step>"
    )
    given = parse(parser, words)
    for plan in plan_exports(find_run(given.run), given.step, given.role, Path(given.out) if given.out else None):
        written = plan.write(lambda what: print(what, file=sys.stderr, flush=True))
        print(plan.folder if written else f"{plan.folder} (it was there already)")
    return int(ExitCode.DONE)
