"""What an end of an attempt may come from: each verdict's meaning, what to do about it, and the command to type next.

`docs/troubleshooting.md` has the same words; a test holds the two together.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

Kind = Literal[
    "configuration",
    "data",
    "user's code",
    "GPU memory",
    "host memory",
    "time limit",
    "preempted",
    "node failure",
    "communication",
    "hang",
    "disk",
    "cancelled",
    "waiting for Slurm",
    "more nodes",
    "changed script",
    "internal",
]
Confidence = Literal["certain", "likely"]
"""certain: somebody wrote so. likely: it follows from who fell silent, or from words."""


class Verdict(NamedTuple):
    """`next` is a command; {run} stands for the run directory, {changed} for settings that name what has changed."""

    means: str
    do: str
    next: str
    changed: str = ""
    """Where the end itself names none."""


VERDICTS: Mapping[Kind, Verdict] = MappingProxyType(
    {
        "configuration": Verdict(
            "A setting cannot work here, which showed only once the run's processes had started.",
            "Change the setting that the message names. If `resume` refuses the change, submit a new run.",
            "hpcrl resume {run} --SECTION.SETTING VALUE",
        ),
        "data": Verdict(
            "A data set, a tokenizer or a model on disk is missing, damaged or not what the settings say.",
            "Correct the file and line that the message names. If a file differs from the one that was "
            "submitted, put it back, or accept the change.",
            "hpcrl resume {run} --accept-changed {changed}",
            "data.train",
        ),
        "user's code": Verdict(
            "A function of yours raised, took too long, ended its process, or returned something that is no score.",
            "Correct the line that the message names, and resume with `--accept-changed` and the setting that names "
            "the file: without it, the run keeps the copy of your code that it made at submission.",
            "hpcrl resume {run} --accept-changed {changed}",
            "reward.function",
        ),
        "GPU memory": Verdict(
            "A GPU ran out of memory in a call.",
            "Lower the role's micro_batch_tokens, or generation.slots; or set recompute or offload. `hpcrl plan` "
            "says how much memory a setting needs.",
            "hpcrl resume {run} --actor.micro_batch_tokens 8192",
        ),
        "host memory": Verdict(
            "The kernel killed a process because memory ran out, or an allocation in host memory failed.",
            "Make the process that grew use less (a lower micro_batch_tokens, fewer workers on a node), or give the "
            "jobs more memory: cluster.slurm.memory.",
            "hpcrl resume {run}",
        ),
        "time limit": Verdict(
            "The allocation's time limit was reached. Finished calls are on disk.",
            "On Slurm the run continues in its next job; a call that takes longer than the limit needs a longer limit.",
            "hpcrl resume {run}",
        ),
        "preempted": Verdict(
            "The system took the nodes away, or told the processes to exit.",
            "Nothing is wrong. On Slurm the run continues by itself; elsewhere, resume it.",
            "hpcrl resume {run}",
        ),
        "node failure": Verdict(
            "A process or a node is lost. Nothing in the run ended it, and memory did not run out.",
            "Resume. If it is the same node each time, leave it out (cluster.slurm.exclude), and read the node's own "
            "log.",
            "hpcrl resume {run}",
        ),
        "communication": Verdict(
            "A connection broke, or was never made, while all processes were alive.",
            "If it happens again, measure the network between the nodes; check cluster.interface and firewalls.",
            "hpcrl doctor --nodes 2",
        ),
        "hang": Verdict(
            "A process was alive but gave no sign of life, or made no progress for too long.",
            "Look at what it did last, and what the others were waiting for at that time.",
            "hpcrl logs {run} --around first-failure",
        ),
        "disk": Verdict(
            "The disk was full, read-only or failing, or a quota was used up.",
            "Make room, or lower control.keep_checkpoints if it is above 2, and resume.",
            "df -h {run}",
        ),
        "cancelled": Verdict(
            "Somebody ended the run: `hpcrl stop`, Ctrl-C, scancel, or a resume elsewhere that took over.",
            "Nothing is wrong. Resume it when you want to.",
            "hpcrl resume {run}",
        ),
        "waiting for Slurm": Verdict(
            "The run's jobs, or some of them, are waiting in the queue.",
            "Wait. If it takes too long, `hpcrl stop RUN`, and resume with fewer nodes or on another partition.",
            "hpcrl status {run}",
        ),
        "more nodes": Verdict(
            "The run took in nodes that had come later: its number of nodes is a range.",
            "Nothing is wrong. The run continues by itself.",
            "hpcrl status {run}",
        ),
        "changed script": Verdict(
            "You had changed the run's script, and it asks for something else than before in steps that were open.",
            "Nothing is wrong. The run continues by itself: steps in which roles had changed end with the script as it "
            "was, later ones begin anew.",
            "hpcrl status {run}",
        ),
        "internal": Verdict(
            "hpcrl is at fault, or a process crashed in code that is not yours.",
            "Read the traceback. If the cause is not on your side, report it and include the traceback.",
            "hpcrl inspect {run} why --traceback",
        ),
    }
)
