"""What submitting, watching and stopping a run ask of whoever starts its processes, and how that is declared."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hpcrl.config.cluster import Abilities, ClusterConfig
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.durable.records import Submission
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, ExitCode, HpcrlError, Problem
from hpcrl.plugins import Room, find, load, names


class Launcher(Protocol):
    """Starts, looks for and ends the jobs of one run's submissions."""

    def prepare(self, experiment: ExperimentConfig) -> ExperimentConfig:
        """The experiment with all that is left to `auto` settled, before anything is made.

        Raises ConfigurationError for what this machine or cluster cannot do.
        """
        ...

    def describe(self, experiment: ExperimentConfig, run_dir: Path) -> str:
        """What `start` would do, for `--dry-run`."""
        ...

    def start(self, run: RunDirectory, nonce: str) -> Submission:
        """Start all jobs of a submission, exactly once, and write down what was started."""
        ...

    def recover(self, run: RunDirectory) -> None:
        """Write down what a submission that was cut off has started."""
        ...

    def living(self, run: RunDirectory, submission: Submission) -> list[str]:
        """Names of the jobs of a submission that have not ended: that run, or will."""
        ...

    def is_alive(self, run: RunDirectory, submission: Submission) -> bool:
        """Whether a master runs or will run; one that is being ended does not count."""
        ...

    def accepts_commands(self, run: RunDirectory, submission: Submission) -> bool:
        """Whether a master runs that can obey; a job that waits in a queue cannot."""
        ...

    def end(self, run: RunDirectory, submission: Submission) -> None:
        """End what is left of a submission's jobs, at once."""
        ...


class UnreachableError(HpcrlError):
    """Who starts jobs cannot be asked now, or has not told what it did. The same command may succeed later."""

    exit_code = ExitCode.REQUEUE


@contextmanager
def telling_what_was_made(made: str, advice: str) -> Iterator[None]:
    """Of an UnreachableError, its first line, what there is by then, and what helps."""
    try:
        yield
    except UnreachableError as error:
        raise UnreachableError(f"{str(error).splitlines()[0]}\n{made}", advice) from error


@dataclass(frozen=True)
class Choice:
    """Who starts the processes of a run, and, where that was left open, why it is that one."""

    launcher: Launcher
    why: str = ""


def no_abilities(_: ClusterConfig) -> Abilities:
    return Abilities()


@dataclass(frozen=True, kw_only=True)
class LauncherDeclaration:
    """What a launcher can do, and where the code is that does it: each as `module:NAME`, imported when it is needed.

    A file of `launch/launchers/` declares one as LAUNCHER, and its name is what `cluster.type` says.
    """

    launcher: str
    """The class of the Launcher, or a function that makes one, called with nothing."""
    if_there: str = ""
    """A function that gives the Launcher if it can start anything from here, else why not; whoever chooses calls it."""
    chooses: bool = False
    """Whether `launcher` only chooses another (a Choice), whose name an experiment has once it is prepared."""
    waits: bool = False
    """Whether `hpcrl submit` stays and shows progress unless it is told not to."""
    abilities: Callable[[ClusterConfig], Abilities] = no_abilities
    """What master and agents may count on, with these settings."""
    allocation: str = ""
    """The class of the master's Allocation, called with run directory and submission; empty where nodes have no end."""
    memory: str = ""
    """A function that says what memory workers have: ClusterConfig, Launcher, number of CPU workers of a node →
    Capacity; empty where nobody knows."""
    queue: str = ""
    """A function that asks the queue about runs: RunDirectory, … → Queue, …; empty where jobs start at once."""


LAUNCHERS = Room("hpcrl.launch.launchers", "LAUNCHER", LauncherDeclaration)


def declaration_of(type_: str) -> LauncherDeclaration:
    """What a `cluster.type` declares. Raises ConfigurationError where there is none of that name."""
    return find(LAUNCHERS, type_, "cluster.type")


def choose(type_: str) -> Choice:
    """Who starts the processes of a run of this `cluster.type`. Raises ConfigurationError where nobody can."""
    declared = declaration_of(type_)
    made = load(declared.launcher)()
    return made if declared.chooses else Choice(made)


def launcher_for(type_: str) -> Launcher:
    return choose(type_).launcher


class Launchers:
    """Who started each submission of a run: not always who would start the next. Makes each launcher once."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._made: dict[str, Launcher] = {}
        self._types: dict[str, str] = {}

    def of(self, submission: Submission) -> Launcher:
        nonce = submission.nonce
        if nonce not in self._types:
            self._types[nonce] = self._run.configuration(nonce)["cluster"]["type"]
        return self._for(self._types[nonce])

    def every(self) -> list[Launcher]:
        """One of each kind: a submission that was cut off may have been sent anywhere."""
        known = dict.fromkeys([*names(LAUNCHERS), self._run.configuration()["cluster"]["type"]])
        return [self._for(type_) for type_ in known if not declaration_of(type_).chooses]

    def _for(self, type_: str) -> Launcher:
        if type_ not in self._made:
            self._made[type_] = launcher_for(type_)
        return self._made[type_]


def launcher_problems(experiment: ExperimentConfig) -> Iterator[Problem]:
    """A check of the configuration: whether `cluster.type` names a launcher."""
    try:
        declaration_of(experiment.cluster.type)
    except ConfigurationError as error:
        yield from error.about("cluster.type")
