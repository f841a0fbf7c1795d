"""Runs on Slurm as `launch/submit.py` sees them: settle what is auto, send, look, cancel."""

import contextlib
import dataclasses
import shutil
import time
from collections.abc import Sequence
from importlib.abc import Traversable
from importlib.resources import files
from pathlib import Path

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.durable.records import Submission
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.inspect.queue import MASTERS
from hpcrl.launch.slurm.commands import Slurm, SlurmError, SlurmUnavailableError
from hpcrl.launch.slurm.jobs import JobState, State
from hpcrl.launch.slurm.render import OUTPUT, Script, Target, choose_topology, comment_of, node_cpus, render
from hpcrl.launch.slurm.requeue import RequeueRules, rules_of
from hpcrl.launch.slurm.site import NodeKind, SlurmSite, describe_preemption, describe_too_long_a_grace, preempt_mode_of
from hpcrl.launch.slurm.submission import finish_intents, send_all, write_intent
from hpcrl.placement.placing import cpu_roles
from hpcrl.recipes.algorithm import experiment_from

POLL_S = 15.0
"""Slurm is asked about a run at most this often."""
END_POLL_S = 2.0
"""And this often in the seconds in which the jobs of a run that is over end."""


FIND_S = 20.0
"""How long a Slurm that nobody has asked for by name may take to answer."""
NOT_CONFIGURED = "dns srv lookup failed"
"""What Slurm's commands say, in lower case, where they are installed and belong to no cluster."""


def find_slurm() -> "SlurmLauncher | str":
    """The launcher, or why there is no Slurm here.

    Raises ConfigurationError where there is one, and it does not answer.
    """
    if shutil.which("sbatch") is None:
        return "there is no sbatch in PATH"
    launcher = SlurmLauncher(Slurm(timeout_s=FIND_S))
    try:
        launcher.site()
    except SlurmError as error:
        if NOT_CONFIGURED in error.stderr.lower():
            return "Slurm's commands are here, but belong to no cluster"
        said = next(iter(error.stderr.splitlines()), "nothing")
        raise ConfigurationError(
            [f"cluster.type = auto: Slurm's commands are here, but Slurm does not answer ({said})."],
            "Try again later, or with --cluster slurm to hear more; --cluster local runs on this machine.",
        ) from None
    return SlurmLauncher()


class SlurmLauncher:
    """Sends the jobs of runs, and asks squeue about them, rarely."""

    def __init__(self, slurm: Slurm | None = None) -> None:
        self._slurm = slurm or Slurm()
        self._site: SlurmSite | None = None
        self._asked: dict[tuple[str, int], tuple[float, list[str]]] = {}
        self._wondered: set[str] = set()

    def prepare(self, experiment: ExperimentConfig) -> ExperimentConfig:
        topology, _ = choose_topology(experiment.cluster)
        cluster = dataclasses.replace(experiment.cluster, type="slurm", topology=topology)
        self._refuse(cluster.most_nodes, topology)
        self._refuse_cpus(cluster, cpu_roles(experiment))
        prepared = dataclasses.replace(experiment, cluster=cluster)
        # What is wrong with a template or an option is said before anything is made.
        self._scripts(prepared, Path(experiment.run_root), "NONCE")
        return prepared

    def _refuse(self, nodes: int, topology: str) -> None:
        """What Slurm would accept and then not carry out."""
        site = self.site()
        if topology == "array" and nodes > site.max_array_size:
            raise ConfigurationError(
                [f"cluster.nodes = {nodes} is more than this site's MaxArraySize = {site.max_array_size}."],
                "Set cluster.topology to hetjob or colocated.",
            )
        if topology == "hetjob" and site.disable_hetjob_steps:
            raise ConfigurationError(
                ["cluster.topology = hetjob, but this site disables steps of such jobs."],
                "Set cluster.topology to array.",
            )

    def _refuse_cpus(self, cluster: ClusterConfig, others: Sequence[str]) -> None:
        """CPU workers that fit no node; of model workers alone sbatch says it. `others` has the role of each."""
        found = self.site().partitions_of(cluster.slurm.partition)
        if not others or not found:
            return
        names = ",".join(each.name for each in found)
        most = max((kind.cpus for kind in self.nodes(names)), default=0)
        asked = node_cpus(cluster, len(others))
        if most and asked > most:
            keys = [f"{role}.workers" for role in dict.fromkeys(others)]
            numbers = [cluster.workers_per_node, *(others.count(role) for role in dict.fromkeys(others))]
            raise ConfigurationError(
                [
                    f"cluster.slurm.cpus_per_worker · ({' + '.join(['cluster.workers_per_node', *keys])}) = "
                    f"{cluster.slurm.cpus_per_worker} · ({' + '.join(map(str, numbers))}) = {asked} CPUs of each node, "
                    f"but the largest node of partition {names} has {most}."
                ],
                f"Lower cluster.slurm.cpus_per_worker or {' or '.join(keys)}.",
            )

    def describe(self, experiment: ExperimentConfig, run_dir: Path) -> str:
        """What `start` would send, word for word, and why."""
        topology, why = choose_topology(experiment.cluster)
        cluster = self.prepare(experiment).cluster
        scripts = self._scripts(experiment, run_dir, "NONCE")
        lines = [
            f"topology {topology}: {why}",
            *self._preemption(cluster),
            f"calls of Slurm: {self._slurm.rpcs} made now, {len(scripts)} to send",
        ]
        for script in scripts:
            lines += ["", f"# ── {script.name}.sbatch {'─' * 60}", script.text]
        return "\n".join(lines)

    def start(self, run: RunDirectory, nonce: str) -> Submission:
        experiment: ExperimentConfig = experiment_from(run.configuration(nonce))
        scripts = self._scripts(experiment, run.root, nonce)
        rules = {script.name: self._rules(script.name, experiment.cluster) for script in scripts}
        run.files.make_directory(run.submitit_folder(nonce))
        if experiment.cluster.snapshot:
            copy_code(code_folder(run.root, nonce))
        intent = write_intent(run, nonce, experiment.cluster.topology, scripts, rules)
        submission = send_all(run, self._slurm, intent)
        ids = ", ".join(f"{name} {job}" for name, job in submission.jobs.items())
        print(f"sent to Slurm ({experiment.cluster.topology}): {ids}")
        print(*self._preemption(experiment.cluster), sep="\n")
        return submission

    def _rules(self, name: str, cluster: ClusterConfig) -> dict[str, RequeueRules]:
        """What the site does with the jobs of a script, by partition: the options may leave the choice to Slurm."""
        slurm = cluster.slurm
        if name == "master":
            return self._rules_by_partition(slurm.master_partition or slurm.partition, slurm.master_flags)
        nodes = self._rules_by_partition(slurm.partition, slurm.flags)
        if cluster.topology != "hetjob":
            return nodes
        # Its environment tells of the master's component only: all goes as the more fragile of the two.
        masters = self._rules_by_partition(slurm.master_partition or slurm.partition, slurm.master_flags)
        both = [*nodes.values(), *masters.values()]
        return {"": RequeueRules(all(one.requeue_allowed for one in both), any(one.preemption_cancels for one in both))}

    def _rules_by_partition(self, partitions: str | None, flags: Sequence[str]) -> dict[str, RequeueRules]:
        names = partitions.split(",") if partitions else []
        return {"": rules_of(self.site(), partitions, flags)} | {
            name: rules_of(self.site(), name, flags) for name in names
        }

    def _preemption(self, cluster: ClusterConfig) -> list[str]:
        """What the user should know of it. Of a master that is elsewhere too, if that is not safe from it."""
        site, slurm = self.site(), cluster.slurm
        said = [
            describe_preemption(site, slurm.partition),
            describe_too_long_a_grace(site, slurm.partition, cluster.grace_s),
        ]
        elsewhere = slurm.master_partition not in (None, slurm.partition)
        if elsewhere and preempt_mode_of(site, site.partition(slurm.master_partition)) != "off":
            said.append(f"Of the master: {describe_preemption(site, slurm.master_partition)}")
        return [sentence for sentence in said if sentence]

    def living(self, run: RunDirectory, submission: Submission) -> list[str]:
        """Asks Slurm at most every POLL_S, or when another attempt has ended. While it is silent, nothing changes."""
        ended = sum(run.read_verdict(number) is not None for number in run.numbers())
        key = submission.nonce, ended
        when, found = self._asked.get(key, (-POLL_S, list(run.jobs_of(submission.nonce).values())))
        if time.monotonic() - when >= (END_POLL_S if self._is_over(run, submission) else POLL_S):
            with contextlib.suppress(SlurmUnavailableError):
                found = self._ask(run, submission.nonce)
            self._asked[key] = time.monotonic(), found
        return found

    @staticmethod
    def _is_over(run: RunDirectory, submission: Submission) -> bool:
        """Whether the master has said that the run is over: its jobs end within seconds."""
        verdict = run.verdict_of(submission.nonce)
        return verdict is not None and verdict.exit_code != ExitCode.REQUEUE

    def _ask(self, run: RunDirectory, nonce: str) -> list[str]:
        jobs = run.jobs_of(nonce)
        queued = self._slurm.squeue(jobs) if jobs else ()
        for word in {word for each in queued for word in each.state.unknown} - self._wondered:
            self._wondered.add(word)
            print(f"warning: Slurm says {word} of a job, which hpcrl does not know; it is taken as alive.")
        alive = {each.id.job for each in queued if each.state.is_alive}
        return [name for job, name in jobs.items() if int(job) in alive]

    def is_alive(self, run: RunDirectory, submission: Submission) -> bool:
        states = self._states_of_masters(run, submission)
        return any(state.is_alive and state.state is not State.ENDING for state in states)

    def accepts_commands(self, run: RunDirectory, submission: Submission) -> bool:
        states = self._states_of_masters(run, submission)
        return any(state.state in (State.RUNNING, State.STARTING) for state in states)

    def _states_of_masters(self, run: RunDirectory, submission: Submission) -> list[JobState]:
        masters = run.jobs_named(submission.nonce, *MASTERS)
        return [each.state for each in self._slurm.squeue(masters)] if masters else []

    def end(self, run: RunDirectory, submission: Submission) -> None:
        """Those that are written down, and those that say of themselves that they belong to it."""
        jobs = set(run.jobs_of(submission.nonce))
        with contextlib.suppress(SlurmUnavailableError):
            jobs |= set(self._slurm.find_in_queue(comment_of(submission.nonce, name) for name in OUTPUT))
        self._slurm.scancel(sorted(jobs))
        self._asked.clear()

    def recover(self, run: RunDirectory) -> None:
        """Find what a submission that was cut off has sent."""
        finish_intents(run, self._slurm)

    def _scripts(self, experiment: ExperimentConfig, run_dir: Path, nonce: str) -> Sequence[Script]:
        topology, _ = choose_topology(experiment.cluster)
        code = code_folder(run_dir, nonce) if experiment.cluster.snapshot else None
        target = Target(run_dir, experiment.name, nonce, code)
        return render(experiment.cluster, topology, target, len(cpu_roles(experiment)))

    def site(self) -> SlurmSite:
        """What this Slurm is; asked once."""
        if self._site is None:
            self._site = self._slurm.site()
        return self._site

    def nodes(self, partitions: str) -> list[NodeKind]:
        """The nodes of partitions, by what they have."""
        return self._slurm.nodes(partitions)


def code_folder(run_dir: Path, nonce: str) -> Path:
    return run_dir / "submission" / nonce / "code"


def copy_code(folder: Path) -> None:
    """hpcrl as it is now, to come before whatever is installed when the jobs start."""
    _copy(files("hpcrl"), folder / "hpcrl")


def _copy(source: Traversable, target: Path) -> None:
    target.mkdir(parents=True)
    for entry in source.iterdir():
        if entry.is_file():
            (target / entry.name).write_bytes(entry.read_bytes())
        elif entry.name != "__pycache__":
            _copy(entry, target / entry.name)
