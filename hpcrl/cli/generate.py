"""`hpcrl generate MODEL [PROMPT]`: a model's response to one prompt, as it comes."""

import sys
from collections.abc import Sequence
from pathlib import Path

from hpcrl.cli.arguments import asks_for_help, command_parser, parse
from hpcrl.cli.asking import add_options, asked, model_first, show
from hpcrl.errors import ConfigurationError, ExitCode


def run(words: Sequence[str]) -> int:
    parser = command_parser(
        "generate",
        "Print a model's response to a prompt as it comes, computed on this machine by hpcrl's own engine. Where the "
        "model has a chat template, the prompt is a user's message. For many prompts submit the algorithm generate.",
    )
    add_options(parser)
    parser.add_argument(
        "prompt", type=str, nargs="?", default=None, help="the prompt; without one it is read from standard input"
    )
    parser.add_argument("--file", type=str | None, default=None, help="a file that holds the prompt")
    parser.add_argument("--raw", action="store_true", help="continue the prompt as it is, without a chat template")
    if asks_for_help(words):
        print(parser.format_help())
        return int(ExitCode.DONE)
    given = parse(parser, model_first(words))
    if given.prompt is not None and given.file is not None:
        raise ConfigurationError(["a prompt and --file are two prompts."], "Give one of them.")
    if given.raw and given.system is not None:
        raise ConfigurationError(["--system is part of a chat, and --raw is none."], "Give one of them.")
    text = _prompt(given.prompt, given.file)
    with asked(given) as ready:
        if ready.template is None or given.raw:
            prompt = ready.tokens.encode_prompts([text])[0]
        else:
            system = [] if given.system is None else [{"role": "system", "content": given.system}]
            prompt = ready.chat_prompt([*system, {"role": "user", "content": text}])
        show(ready.respond(prompt))
    return int(ExitCode.DONE)


def _prompt(word: str | None, file: str | None) -> str:
    if word is not None and word != "-":
        return word
    if file is None:
        return sys.stdin.read().removesuffix("\n")
    try:
        return Path(file).read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise ConfigurationError([f"--file {file} cannot be read: {why}."]) from error
