"""`hpcrl draw CONFIG --out graph.svg`: a configuration's dataflow graph."""

from collections.abc import Sequence
from pathlib import Path

from hpcrl.cli.arguments import asks_for_help, command_parser, help_with_settings, parse, read_experiment, separate
from hpcrl.dataflow.draw import to_svg
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.recipes.algorithm import recipe


def run(words: Sequence[str]) -> int:
    parser = command_parser("draw", "Draw a configuration's dataflow graph as SVG.")
    parser.add_argument("config", type=str, help="a YAML file")
    parser.add_argument("--out", type=str, required=True, metavar="FILE", help="the .svg file to write")
    mine, overrides = separate(words, ("--out",))
    if asks_for_help(mine):
        print(help_with_settings(parser, mine, overrides))
        return int(ExitCode.DONE)
    given = parse(parser, mine)
    drawing = to_svg(recipe(read_experiment(given.config, overrides)).graph())
    try:
        Path(given.out).write_text(drawing, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            [f"--out {given.out} cannot be written: {error.strerror}. Name another file."]
        ) from None
    print(given.out)
    return int(ExitCode.DONE)
