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
    "internal",
]
Confidence = Literal["certain", "likely"]
"""certain: somebody wrote so. likely: it follows from who fell silent, or from words."""


class Verdict(NamedTuple):
    """`next` is a command; {run} stands for the run directory."""

    means: str
    do: str
    next: str


VERDICTS: Mapping[Kind, Verdict] = MappingProxyType(
    {
        "configuration": Verdict(
            "A setting cannot work here, which only the processes of the run could see.",
            "Change the setting that the message names; where `resume` refuses it, submit anew.",
            "hpcrl resume {run} --SECTION.SETTING VALUE",
        ),
        "data": Verdict(
            "A data set, a tokenizer or a model on disk is missing, damaged or not what the settings say.",
            "Correct the file and line that are named. A file that differs from what was submitted has to be accepted.",
            "hpcrl resume {run} --accept-changed data.train",
        ),
        "user's code": Verdict(
            "A function of yours raised, took too long, ended its process, or returned something that is no score.",
            "Correct it at the line that is named; `resume` takes the file as it is then.",
            "hpcrl resume {run}",
        ),
        "GPU memory": Verdict(
            "A GPU had no room for what a call computes.",
            "Lower micro_batch_tokens of the role, or generation.slots; or set recompute or offload. "
            "`hpcrl plan` says what a setting needs.",
            "hpcrl resume {run} --actor.micro_batch_tokens 8192",
        ),
        "host memory": Verdict(
            "The kernel killed a process for want of memory, or an allocation on the host failed.",
            "Let what grew use less, or give the jobs more.",
            "hpcrl resume {run} --cluster.slurm.memory 64G",
        ),
        "time limit": Verdict(
            "The allocation's time was over. What was finished is on disk.",
            "On Slurm the run goes on in its next job; a call that is longer than the limit needs a longer one.",
            "hpcrl resume {run}",
        ),
        "preempted": Verdict(
            "The system took the nodes away, or told the processes to go.",
            "Nothing is wrong. On Slurm the run goes on by itself; elsewhere, resume it.",
            "hpcrl resume {run}",
        ),
        "node failure": Verdict(
            "A process or a node is gone, and nobody in the run ended it, nor a lack of memory.",
            "Resume. If it is the same node each time, exclude it; look into the node's own log.",
            "hpcrl resume {run}",
        ),
        "communication": Verdict(
            "A connection broke, or was never made, while all processes were alive.",
            "If it happens again, measure the network between the nodes; look at cluster.interface and firewalls.",
            "hpcrl doctor --nodes 2",
        ),
        "hang": Verdict(
            "A process was there and gave no sign of life, or came no further for too long.",
            "Look at what it did last, and at what others waited for then.",
            "hpcrl logs {run} --around first-failure",
        ),
        "disk": Verdict(
            "The disk was full, read-only or failing, or a quota was used up.",
            "Make room, or lower control.keep_checkpoints, and resume.",
            "df -h {run}",
        ),
        "cancelled": Verdict(
            "Somebody ended it: `hpcrl stop`, Ctrl-C, scancel, or a resume elsewhere that took it over.",
            "Nothing is wrong. Resume it when you want to.",
            "hpcrl resume {run}",
        ),
        "waiting for Slurm": Verdict(
            "Its jobs, or some of them, wait for their turn in the queue.",
            "Wait. If it takes too long, ask for fewer nodes or another partition.",
            "hpcrl status {run}",
        ),
        "internal": Verdict(
            "hpcrl broke a promise, or a process crashed in code that is not yours.",
            "Read the traceback. If the cause is not on your side, report it, with that.",
            "hpcrl inspect {run} why --traceback",
        ),
    }
)
