"""`hpcrl export RUN`: trained roles in Hugging Face format, out of a checkpoint."""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpcrl.cli.arguments import RUN_HELP, asks_for_help, command_parser, find_run, parse
from hpcrl.cli.outputs import refuse_unwritable
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.inspect.terminal import show
from hpcrl.launch.export import plan_exports
from hpcrl.launch.exportable import read_exports


def run(words: Sequence[str]) -> int:
    parser = command_parser(
        "export",
        "Write the trained roles of a checkpoint in Hugging Face format, as transformers and vLLM load them. The run "
        "may be running, stopped or killed; it takes neither its cluster nor a GPU, only the base model.",
    )
    parser.add_argument("run", type=str, help=RUN_HELP)
    parser.add_argument(
        "--step", type=int | None, default=None, help="the step whose checkpoint is written; by default the newest"
    )
    parser.add_argument(
        "--role", type=str | None, default=None, help="the role that is written; by default all trained ones"
    )
    parser.add_argument(
        "--dtype", type=str | None, default=None, help="fp32, bf16 or fp64; by default what the role computes in"
    )
    parser.add_argument(
        "--out", type=str | None, default=None, help="the folder to make; by default RUN/export/<role>/step-<step>"
    )
    parser.add_argument("--list", action="store_true", help="write nothing; show which steps and roles can be had")
    parser.add_argument("--json", action="store_true", help="print the list as JSON")
    if asks_for_help(words):
        print(parser.format_help())
        return int(ExitCode.DONE)
    given = parse(parser, words)
    where = find_run(given.run)
    if given.json and not given.list:
        raise ConfigurationError(["--json is of the list."], "Give --list too.")
    if given.list:
        view = read_exports(where, given.role, given.step)
        print(msgspec.json.format(msgspec.json.encode(view)).decode()) if given.json else show(view)
        return int(ExitCode.DONE)
    out = Path(given.out) if given.out else None
    if out is not None:
        refuse_unwritable("--out", out)
    for plan in plan_exports(where, given.step, given.role, out, given.dtype):
        written = plan.write(lambda what: print(what, file=sys.stderr, flush=True))
        print(plan.folder if written else f"{plan.folder} (it was there already)")
    return int(ExitCode.DONE)
