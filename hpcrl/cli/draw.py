"""`hpcrl draw CONFIG --out graph.svg`: a configuration's dataflow graph and where its calls are made, as a text for
Graphviz or drawn by it."""

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from hpcrl.cli.arguments import asks_for_help, command_parser, parse, separate
from hpcrl.cli.outputs import written
from hpcrl.cli.settings import help_with_settings, read_experiment
from hpcrl.dataflow.dot import Place, to_dot
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.placement.layouts import mesh_text
from hpcrl.placement.plan import Plan, plan_for

ENDINGS = (".dot", ".svg", ".png", ".pdf")
PROGRAMS = ("dot", "graphviz-pure")
INSTALL = "Install Graphviz (apt install graphviz), or for .svg and .png its port (pip install 'hpcrl[draw]')."
DRAW_TIMEOUT_S = 60.0


def run(words: Sequence[str]) -> int:
    parser = command_parser("draw", "Draw a configuration's dataflow graph.")
    parser.add_argument("config", type=str, help="a YAML file")
    parser.add_argument(
        "--out", type=str, required=True, metavar="FILE", help=f"the file to write; it ends in {', '.join(ENDINGS)}"
    )
    mine, overrides = separate(words, ("--out",))
    if asks_for_help(mine):
        print(help_with_settings(parser, mine, overrides))
        return int(ExitCode.DONE)
    given = parse(parser, mine)
    out = Path(given.out)
    if out.suffix not in ENDINGS:
        raise ConfigurationError([f"--out {out} must end in {', '.join(ENDINGS)}."], "Name another file.")
    experiment = read_experiment(given.config, overrides)
    plan = plan_for(experiment)
    text = to_dot(plan.graph(), _places(plan)).encode()
    picture, problem = (text, "") if out.suffix == ".dot" else _draw(text, out.suffix[1:])
    if problem:
        _write(out.with_suffix(".dot"), text)
        raise ConfigurationError(
            [f"{out} was not drawn: {problem}. The graph is in {out.with_suffix('.dot')}."], INSTALL
        )
    _write(out, picture)
    print(out)
    return int(ExitCode.DONE)


def _places(plan: Plan) -> dict[str, Place]:
    """Call → where it is made; a run of one worker has nothing to say of that."""
    if len(plan.workers) == 1:
        return {}
    replicas = {call: plan.replica(call) for call in plan.at}
    return {
        call: Place(str(it.model), f"{it.arrangement.short} on {mesh_text(it.ranks)}") for call, it in replicas.items()
    }


def _draw(text: bytes, form: str) -> tuple[bytes, str]:
    """The picture, and what went wrong if there is none."""
    # Not every shell that runs a virtual environment's hpcrl has its programs on the PATH.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), sysconfig.get_path("scripts")])
    program = next(filter(None, (shutil.which(name, path=path) for name in PROGRAMS)), None)
    if program is None:
        return b"", f"there is neither {' nor '.join(PROGRAMS)} here"
    try:
        done = subprocess.run(
            [program, f"-T{form}"], input=text, capture_output=True, timeout=DRAW_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return b"", f"{program} took more than {DRAW_TIMEOUT_S:.0f} s"
    except OSError as error:
        return b"", f"{program} cannot be run: {error.strerror}"
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split())
        return b"", f"{program} says: {said.rstrip('.') or f'exit code {done.returncode}'}"
    return done.stdout, ""


def _write(name: Path, content: bytes) -> None:
    with written("--out", name) as file:
        file.write(content)
