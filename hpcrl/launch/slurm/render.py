"""A run's configuration → the sbatch scripts that are sent, as texts. Pure but for reading the template.

A template is a shell script with names between @s; `sbatch/` holds hpcrl's own, and in `parts/` what several of them
include. Which options a job gets, and how odd characters in names and paths survive Slurm's parser and the shell, is
decided here and nowhere else.
"""

import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import Traversable
from importlib.resources import files
from pathlib import Path
from typing import Literal

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.slurm import SlurmConfig
from hpcrl.errors import ConfigurationError

Topology = Literal["array", "hetjob", "colocated"]
TEMPLATES = ("array", "hetjob", "colocated")
OUTPUT = {"master": "master-%j.out", "workers": "workers-%A_%a.out", "run": "run-%j.out"}
"""Script → the file of its output, in the submission's folder."""
HETJOB = "hetjob"
"""The line between two components of a heterogeneous job."""
FIND = (
    'command -v "$0" > /dev/null && exec "$0" "$@"; '
    'echo "cluster.slurm.wrap: there is no $0 on $(uname -n). Name its whole path, or load it in '
    'cluster.slurm.prologue." >&2; exit 64'
)
"""A shell's script that becomes the command which is its arguments, if the node has it."""
_PLACE = re.compile(r"@([A-Z_]+)@")
_INCLUDE = re.compile(r"^# include (\S+)\n", re.MULTILINE)
_PLAIN = re.compile(r"[A-Za-z0-9_./:=,+%@&|*\[\]()-]+")


@dataclass(frozen=True)
class Script:
    """One sbatch call: `name` is master, workers or run (all in one job), `comment` finds the job again.

    `note` is the user's own comment, which stands behind it.
    """

    name: str
    text: str
    comment: str
    note: str = ""


@dataclass(frozen=True)
class Target:
    """What a submission is about: the run, its name, the submission's nonce, and where its code is."""

    run_dir: Path
    name: str
    nonce: str
    code: Path | None = None


def choose_topology(cluster: ClusterConfig) -> tuple[Topology, str]:
    """The topology, and why it is that one."""
    if cluster.topology != "auto":
        return cluster.topology, f"cluster.topology = {cluster.topology}"
    if cluster.most_nodes == 1:
        return "colocated", "one node: nothing could be replaced while the rest waits, and one job queues once"
    if cluster.is_elastic:
        return "array", f"{cluster.nodes} nodes: each comes when it can, and a lost one is replaced"
    return "array", f"{cluster.nodes} nodes: a lost one is replaced while the others wait"


def render(cluster: ClusterConfig, topology: Topology, target: Target, cpu_workers: int = 0) -> tuple[Script, ...]:
    """The scripts in the order in which they are sent; a node has so many `cpu_workers` besides its model workers.

    Raises ConfigurationError for a template that lacks a place.
    """
    template = read_template(topology, cluster.template)
    slurm, cpus = cluster.slurm, node_cpus(cluster, cpu_workers)
    if topology == "array":
        elements = [f"--array=0-{cluster.most_nodes - 1}", "--nodes=1", "--ntasks-per-node=1"]
        parts = [("master", _master_options(slurm, topology)), ("workers", [*elements, *_node_options(cluster, cpus)])]
    else:
        nodes = [*_nodes_asked(cluster), *_node_options(cluster, cpus)]
        parts = [("run", nodes if topology == "colocated" else [*_master_options(slurm, topology), HETJOB, *nodes])]
    return tuple(_script(cluster, target, name, options, template, cpus) for name, options in parts)


def read_template(topology: Topology, own: str | None = None) -> str:
    """The text of hpcrl's template or of the user's, with what it includes."""
    return with_parts(Path(own) if own else template_folder() / f"{topology}.sbatch")


def with_parts(template: Path | Traversable) -> str:
    """A template's text; a line `# include NAME` stands for a file of `parts/`."""
    parts = {path.name: path for path in (template_folder() / "parts").iterdir()}
    return _INCLUDE.sub(lambda line: parts[line[1]].read_text() if line[1] in parts else line[0], template.read_text())


def template_folder() -> Traversable:
    """Where the shipped templates are: in the package, wherever that is, be it in a zip."""
    return files("hpcrl") / "sbatch"


def _script(
    cluster: ClusterConfig, target: Target, name: str, options: Sequence[str], template: str, cpus: int
) -> Script:
    slurm = cluster.slurm
    comment = comment_of(target.nonce, name)
    note = slurm.comment or ""
    common = [
        f"--job-name={target.name}" + ("" if name == "run" else f"-{name}"),
        f"--comment={with_note(comment, note)}",
        f"--chdir={target.run_dir / 'submission' / target.nonce}",
        f"--output={OUTPUT[name]}",
        "--open-mode=append",
        "--requeue",
        f"--signal=USR2@{slurm.signal_lead_s}",
        *_given(
            account=slurm.account, reservation=slurm.reservation, exclude=slurm.exclude, time=slurm.time,
            mail_user=slurm.mail_user, mail_type=slurm.mail_type,
        ),
        *([f"--export={','.join(('PATH', 'HOME', 'USER', *slurm.export))}"] if slurm.export else []),
    ]  # fmt: skip
    # What is common comes first: in a heterogeneous job it is the first component's, and Slurm hands on what it can.
    second = [*_given(account=slurm.account, time=slurm.time, exclude=slurm.exclude, reservation=slurm.reservation)]
    lines = [*common, *options]
    if HETJOB in lines:
        cut = lines.index(HETJOB) + 1
        lines[cut:cut] = second
    values = {
        "OPTIONS": "\n".join(f"#SBATCH {_option(line)}" for line in lines),
        "RUN": shlex.quote(str(target.run_dir)),
        "SUBMISSION": shlex.quote(target.nonce),
        "ROLE": "master" if name == "master" else "agent",
        "PYTHON": shlex.quote(slurm.python or sys.executable),
        "PROLOGUE": "\n".join([*_code(target), *slurm.prologue]),
        "CONTAINER": _container_options(slurm, target.run_dir),
        "COMMAND": _command(cluster, target.run_dir),
        "ON_EXIT": f"{_python_outside(slurm)} -m hpcrl.launch.slurm.on_exit",
        "CPUS": str(cpus),
        "NO_GPUS": "--gres=none" if list(_gpu_options(cluster)) else "",
    }
    return Script(name, _fill(template, values), comment, note)


def comment_of(nonce: str, name: str) -> str:
    """The word in a job's comment by which it is found again."""
    return f"hpcrl:{nonce}:{name}"


def with_note(comment: str, note: str) -> str:
    """A job's whole comment: what hpcrl finds it by, then the user's own."""
    return f"{comment} {note}" if note else comment


def _master_options(slurm: SlurmConfig, topology: Topology) -> list[str]:
    return [
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={slurm.master_cpus}",
        *_given(partition=slurm.master_partition or slurm.partition, qos=slurm.master_qos),
        *(_memory_by_cpu(slurm) if topology == "hetjob" else _given(mem=slurm.master_memory)),
        *slurm.master_flags,
    ]


def _memory_by_cpu(slurm: SlurmConfig) -> list[str]:
    """The master's memory as a first component's: sbatch gives --mem to the next component too, --mem-per-cpu not."""
    written = re.fullmatch(r"(\d+)([KMGT]?)B?", slurm.master_memory or "", re.IGNORECASE)
    if written is None or int(written[1]) == 0:
        return _given(mem=slurm.master_memory)
    kib = int(written[1]) << {"K": 0, "M": 10, "G": 20, "T": 30}[written[2].upper() or "M"]
    return [f"--mem-per-cpu={-(-kib // (slurm.master_cpus << 10))}M"]


def _node_options(cluster: ClusterConfig, cpus: int) -> list[str]:
    """Of each node: one agent with all that its workers need."""
    slurm = cluster.slurm
    return [
        f"--cpus-per-task={cpus}",
        *_gpu_options(cluster),
        *_given(
            partition=slurm.partition, qos=slurm.qos, mem=slurm.memory, constraint=slurm.constraint,
            nodelist=slurm.nodelist,
        ),
        *slurm.flags,
    ]  # fmt: skip


def _nodes_asked(cluster: ClusterConfig) -> list[str]:
    """Of a job that has all nodes. Of a range Slurm gives as many as there are; but the least number where it is told
    how many tasks each has."""
    if cluster.is_elastic:
        return [f"--nodes={cluster.least_nodes}-{cluster.most_nodes}"]
    return [f"--nodes={cluster.most_nodes}", "--ntasks-per-node=1"]


def node_cpus(cluster: ClusterConfig, cpu_workers: int) -> int:
    """The CPUs of each node that a job asks for: as many for a CPU worker as for one of models."""
    return cluster.slurm.cpus_per_worker * (cluster.workers_per_node + cpu_workers)


def _gpu_options(cluster: ClusterConfig) -> Iterator[str]:
    slurm = cluster.slurm
    count = f"{slurm.gpu_type}:{cluster.workers_per_node}" if slurm.gpu_type else str(cluster.workers_per_node)
    if cluster.device == "cpu" or slurm.gpus == "none":
        return
    yield f"--gres=gpu:{count}" if slurm.gpus == "gres" else f"--gpus-per-node={count}"


def _given(**options: str | None) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value is not None]


def _option(option: str) -> str:
    """One option as Slurm's parser of #SBATCH lines reads it: quotes and backslashes as in a shell, one line."""
    if "\n" in option:
        raise ConfigurationError([f"the sbatch option {option!r} has a line break in it."], "Write it in one line.")
    name, equals, value = option.partition("=")
    if not equals or _PLAIN.fullmatch(value):
        return option
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}="{quoted}"'


def _code(target: Target) -> Iterator[str]:
    """The snapshot of the code comes before whatever is installed."""
    if target.code is not None:
        yield f'export PYTHONPATH={shlex.quote(str(target.code))}"${{PYTHONPATH:+:$PYTHONPATH}}"'


def _mounts(slurm: SlurmConfig, run_dir: Path) -> list[str]:
    return [f"{run_dir}:{run_dir}", *slurm.container_mounts]


def _container_options(slurm: SlurmConfig, run_dir: Path) -> str:
    """Pyxis' options of srun."""
    if slurm.container != "pyxis":
        return ""
    mounts = shlex.quote(",".join(_mounts(slurm, run_dir)))
    return f"--container-image={shlex.quote(slurm.container_image or '')} --container-mounts={mounts}"


def _command(cluster: ClusterConfig, run_dir: Path) -> str:
    """What a step executes, up to its arguments."""
    slurm = cluster.slurm
    job = f'{wrapped(slurm)}"$python" -m hpcrl.launch.slurm.job --script $$ --threads {cluster.threads_per_worker}'
    if slurm.container != "apptainer":
        return job
    binds = " ".join(f"--bind {shlex.quote(mount)}" for mount in _mounts(slurm, run_dir))
    gpus = "" if cluster.device == "cpu" else "--nv "
    return f"apptainer exec {gpus}{binds} {shlex.quote(slurm.container_image or '')} {job}"


def wrapped(slurm: SlurmConfig) -> str:
    """What comes before Python on a shell's command line; a node that lacks it says so."""
    return f"sh -c {shlex.quote(FIND)} {shlex.join(slurm.wrap)} " if slurm.wrap else ""


def _python_outside(slurm: SlurmConfig) -> str:
    """What the batch script itself executes: `python` may be there in the container only, who submits has hpcrl."""
    within = slurm.container != "none" or slurm.wrap
    return shlex.quote(sys.executable) if within else '"$python"'


def _fill(template: str, values: Mapping[str, str]) -> str:
    """The template with its places filled; lines that held nothing but an empty place are left out."""
    missing = {"OPTIONS", "RUN", "SUBMISSION"} - set(_PLACE.findall(template))
    if missing:
        places = ", ".join(f"@{name}@" for name in sorted(missing))
        raise ConfigurationError(
            [f"cluster.template has no {places}; hpcrl could not find its jobs or its run again."], "Put them in."
        )
    empty = {f"@{name}@" for name, value in values.items() if not value}
    lines = (line for line in template.splitlines() if line not in empty)
    return "\n".join(_PLACE.sub(lambda place: values.get(place[1], place[0]), line) for line in lines) + "\n"
