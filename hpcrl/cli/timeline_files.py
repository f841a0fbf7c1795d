"""A timeline as the files that a command line names: a page, a trace."""

from typing import IO, TextIO

from hpcrl.cli.outputs import written
from hpcrl.errors import MissingExtraError
from hpcrl.inspect.timeline_page import timeline_page
from hpcrl.inspect.views.timeline import Timeline


def write_timeline(view: Timeline, html: str | None, perfetto: str | None, say_on: TextIO) -> None:
    """Says what it has written: on stderr, where stdout has a document of its own.

    Raises MissingExtraError where the package perfetto is not installed.
    """
    for option, name, write in (("--html", html, _write_page), ("--perfetto", perfetto, _write_trace)):
        if name:
            with written(option, name) as file:
                write(view, file)
            print(name, file=say_on)


def _write_page(view: Timeline, file: IO[bytes]) -> None:
    file.write(timeline_page(view))


def _write_trace(view: Timeline, file: IO[bytes]) -> None:
    try:
        from hpcrl.inspect.timeline_trace import write_trace
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "perfetto":
            raise
        raise MissingExtraError("perfetto", "perfetto") from None
    write_trace(view, file)
