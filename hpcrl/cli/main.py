"""`hpcrl COMMAND …`: finds the command's file and turns its errors into plain words and an exit code."""

import errno
import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType, ModuleType

from hpcrl import __version__
from hpcrl.errors import ConfigurationError, ExitCode, HpcrlError
from hpcrl.foreign import plain
from hpcrl.garbage import kept

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "doctor": "check this cluster and its shared disk, and say what to set",
        "new": "write a configuration for your model, data and reward, with a comment on every setting",
        "plan": "show what a configuration would run: graph, workers, memory",
        "profile": "measure what models and links take on the workers, for search and plan",
        "search": "find the allocation with the shortest step that fits, and say why it is",
        "simulate": "simulate a run: how long a step takes, and what lost nodes cost",
        "draw": "draw a configuration's dataflow graph",
        "submit": "start a run",
        "template": "print an sbatch script to edit, for cluster.template",
        "list": "the runs in a folder, one line each",
        "status": "what a run is doing",
        "top": "a live view of a run: steps, curves, workers, calls that hang",
        "inspect": "what a run has reached and what it cost, in numbers and curves",
        "samples": "the prompts and responses of a step, with rewards and log-probabilities",
        "mirror": "copy a run's curves into TensorBoard's or W&B's files",
        "logs": "the logs of all processes of a run, merged by time",
        "pause": "pause a run: calls in flight finish, no others begin",
        "continue": "let a paused run continue",
        "stop": "stop a run; it can be resumed",
        "resume": "resume a run that ended early, from the last finished call",
        "fork": "begin a new run from a checkpoint of another, with other settings",
        "export": "write trained models of a checkpoint in Hugging Face format",
        "eval": "compare models, or checkpoints of runs, on a data set, in one table",
        "generate": "the response of a model, or of a run's checkpoint, to a prompt",
        "chat": "talk with a model, or with a run's checkpoint",
    }
)
INTERRUPTED = 130
"""What a shell gives a command that Ctrl-C ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the process's exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _say_what_can_be_said()
    try:
        code = _run(words)
        sys.stdout.flush()
        return code
    except HpcrlError as error:
        print(_describe(error), file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Who read our output has gone; without this, the interpreter would complain when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.DONE)
    except OSError as error:
        print(f"hpcrl: {error.filename or 'a file'}: {error.strerror or error}.", file=sys.stderr)
        # No file of a run has such a name: it is one that was typed.
        return int(ExitCode.CONFIGURATION if error.errno == errno.ENAMETOOLONG else ExitCode.INTERNAL)


def _say_what_can_be_said() -> None:
    """Where a terminal or a locale has few letters, the others are written as numbers."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run(words: Sequence[str]) -> int:
    match words:
        case ["--help" | "-h" | "help"]:
            print(_help())
        case ["--version"]:
            print(f"hpcrl {__version__}")
        case [command, *rest] if command in COMMANDS:
            return int(_loaded(command).run(rest))
        case []:
            raise ConfigurationError([f"No command given.\n\n{_help()}"])
        case _:
            raise ConfigurationError([f"{words[0]} is not a command."], f"The commands are {', '.join(COMMANDS)}.")
    return int(ExitCode.DONE)


def _loaded(command: str) -> ModuleType:
    """The command's file."""
    name = f"hpcrl.cli.{command}"
    if name not in sys.modules:
        with kept():
            importlib.import_module(name)
    return sys.modules[name]


def _describe(error: HpcrlError) -> str:
    texts = error.problems if isinstance(error, ConfigurationError) else (str(error),)
    problems = [plain(text) for text in texts]
    if len(problems) == 1:
        return f"hpcrl: {problems[0]}"
    return "\n".join([f"hpcrl: {len(problems)} problems, nothing was started.", *(f"  - {text}" for text in problems)])


def _help() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items())
    return (
        "usage: hpcrl COMMAND …\n\n"
        "Durable reinforcement learning from human feedback on Slurm clusters. A run lives in one directory;\n"
        "kill any part of it at any time, and `hpcrl resume` continues with the same numbers.\n\n"
        f"commands:\n{commands}\n\n"
        "  hpcrl plan ppo.yaml                      what would be run\n"
        "  hpcrl submit ppo.yaml --actor.optimizer.lr 1e-6   settings on the command line win over the file\n"
        "  hpcrl submit ppo.yaml --help             every setting of its algorithm, with its default\n"
        "  hpcrl submit --algorithm grpo --help     the same of another algorithm\n"
        "  hpcrl COMMAND --help                     more on a command"
    )


if __name__ == "__main__":
    sys.exit(main())
