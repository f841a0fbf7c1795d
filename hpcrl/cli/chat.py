"""`hpcrl chat MODEL`: a talk with a model, by its chat template."""

import sys
from collections.abc import Iterator, Sequence

from hpcrl.cli.arguments import asks_for_help, command_parser, parse
from hpcrl.cli.asking import add_options, asked, show
from hpcrl.errors import ExitCode

LEAVES = ("/exit", "/quit")
BEGINS_ANEW = "/new"


def run(words: Sequence[str]) -> int:
    parser = command_parser(
        "chat",
        "Talk to a model on this machine, using its chat template. Each line is a message; /new starts over; /exit, "
        "Ctrl-D or Ctrl-C ends.",
    )
    add_options(parser)
    if asks_for_help(words):
        print(parser.format_help())
        return int(ExitCode.DONE)
    given = parse(parser, words)
    with asked(given, chats=True) as ready:
        beginning = [] if given.system is None else [{"role": "system", "content": given.system}]
        messages = list(beginning)
        for number, line in enumerate(_lines()):
            if line == BEGINS_ANEW:
                messages = list(beginning)
                continue
            messages.append({"role": "user", "content": line})
            said = show(ready.respond(ready.chat_prompt(messages), number))
            messages.append({"role": "assistant", "content": said})
    return int(ExitCode.DONE)


def _lines() -> Iterator[str]:
    """What is typed, or comes through a pipe, until it ends."""
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return
        if line in LEAVES:
            return
        if line:
            yield line
