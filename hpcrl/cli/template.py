"""`hpcrl template NAME`: print one of the sbatch scripts that hpcrl sends, to edit and to name in cluster.template."""

from collections.abc import Sequence

from hpcrl.cli.arguments import asks_for_help, command_parser, parse
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.launch.slurm.render import template_folder, with_parts


def run(words: Sequence[str]) -> int:
    paths = [path for path in template_folder().iterdir() if path.name.endswith((".sbatch", ".yaml"))]
    files = {path.name.removesuffix(".sbatch"): path for path in paths}
    names = ", ".join(sorted(files))
    parser = command_parser(
        "template",
        "Print an sbatch script (array, colocated, hetjob) or an example of ~/.config/hpcrl/site.yaml. Edit it, then "
        "name it in cluster.template. What stands between @s is filled in by hpcrl submit.",
    )
    parser.add_argument("name", type=str, help=names)
    if asks_for_help(words):
        print(parser.format_help())
        return int(ExitCode.DONE)
    name = parse(parser, words).name
    if name not in files:
        raise ConfigurationError([f"{name} is not a template."], f"Name one of {names}.")
    print(with_parts(files[name]), end="")
    return int(ExitCode.DONE)
