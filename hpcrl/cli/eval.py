"""`hpcrl eval MODEL …`: how good models are on prompts, by a reward, and whether one is better than another."""

import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

import msgspec
from jsonargparse import ArgumentParser, Namespace

from hpcrl.cli.arguments import asks_for_help, command_parser, parse, separate
from hpcrl.cli.settings import read_experiment
from hpcrl.errors import ConfigurationError, ExitCode

OWN = (
    "--data",
    "--reward",
    "--samples",
    "--temperature",
    "--max-new-tokens",
    "--role",
    "--out",
    "--detach",
    "--json",
)


def run(words: Sequence[str]) -> int:
    parser = _parser()
    mine, settings = separate(words, OWN)
    if asks_for_help(mine):
        print(parser.format_help())
        return int(ExitCode.DONE)
    given = parse(parser, mine)
    if len(set(given.models)) < len(given.models):
        raise ConfigurationError(["a model is named twice."], "Name each once.")
    out = Path(given.out or f"runs/eval-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    places = [out / f"model-{number}" for number in range(1, len(given.models) + 1)]
    with redirect_stdout(sys.stderr):
        code = _evaluate(given, places, settings)
    if code:
        return code
    if given.detach:
        print(f"the same command with --out {out}, without --detach, waits for them and shows the table")
        return int(ExitCode.DONE)
    _show(given, places)
    return int(ExitCode.DONE)


def _evaluate(given: Namespace, places: Sequence[Path], settings: Sequence[str]) -> int:
    """Submit the runs of all models, or wait for or resume those that are there; the first exit code that is not 0.

    Raises ConfigurationError, before anything is sent, where one that is there is of something else.
    """
    # Only a valid command is worth the import of sockets and HDF5.
    from hpcrl.durable.rundir import RunDirectory
    from hpcrl.launch.evaluated import placed_anew, refuse_other
    from hpcrl.launch.evaluations import Asked, experiment_of
    from hpcrl.launch.submit import submit, watch_or_resume

    own = (given.data, given.reward, given.samples, given.temperature, given.max_new_tokens, given.role)
    asked = Asked(*own, tuple(settings))
    experiments = [experiment_of(word, asked, read_experiment, print) for word in given.models]
    there = [RunDirectory.open(place) if (place / "run.json").is_file() else None for place in places]
    for word, experiment, run_dir in zip(given.models, experiments, there, strict=True):
        if run_dir is not None:
            refuse_other(run_dir, word, experiment)
    for word, place, experiment, run_dir in zip(given.models, places, experiments, there, strict=True):
        print(f"{word}: {place}")
        if run_dir is None:
            code = submit(experiment, place, not given.detach)
        else:
            code = watch_or_resume(place, not given.detach, placed_anew(run_dir, experiment, settings))
        if code:
            return code
    return int(ExitCode.DONE)


def _show(given: Namespace, places: Sequence[Path]) -> None:
    from hpcrl.durable.rundir import RunDirectory
    from hpcrl.inspect.terminal import show
    from hpcrl.inspect.views.evaluation import evaluation
    from hpcrl.launch.evaluated import differing
    from hpcrl.launch.evaluations import metrics_of, scores_of

    runs = [RunDirectory.open(place) for place in places]
    scores, metrics = [scores_of(each) for each in runs], [metrics_of(each) for each in runs]
    apart = [differing(runs[0], each) for each in runs]
    view = evaluation(given.models, [str(place) for place in places], scores, metrics, apart)
    print(msgspec.json.format(msgspec.json.encode(view)).decode()) if given.json else show(view)


def _parser() -> ArgumentParser:
    parser = command_parser(
        "eval",
        "Evaluate models on a data set, each by a durable run of the algorithm evaluate, here or on Slurm; "
        "then show one table. For RUN or RUN@STEP, data, reward and settings are by default those of the run. "
        "Typed again with the same --out, it waits for what runs, and resumes what is not done. Any setting of "
        "evaluate may follow, as in --cluster.workers_per_node 2.",
    )
    parser.add_argument("models", type=str, nargs="+", help="folders, ORG/NAME of the hub's cache, runs, or RUN@STEP")
    parser.add_argument("--data", type=str | None, default=None, help="rows with prompt and answer (.jsonl, .parquet)")
    parser.add_argument(
        "--reward",
        type=str | None,
        default=None,
        help="what scores a response: exact, gsm8k, math, or your function as file.py:NAME",
    )
    parser.add_argument("--samples", type=int | None, default=None, help="responses to each prompt")
    parser.add_argument(
        "--temperature",
        type=float | None,
        default=None,
        help="of sampling; by default 1 with several --samples, and greedy with one",
    )
    parser.add_argument("--max-new-tokens", type=int | None, default=None, help="the longest response, in tokens")
    parser.add_argument("--role", type=str | None, default=None, help="of runs; by default the one that generates")
    parser.add_argument("--out", type=str | None, default=None, help="a folder for the runs; else runs/eval-<time>")
    parser.add_argument(
        "--detach", action="store_true", help="submit and return; the same command again shows the table"
    )
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    return parser
