#!/usr/bin/env python3
"""sbatch, squeue, sacct, scancel, scontrol and sinfo, by the name under which this file is called. Runs no job.

All state is in $FAKE_SLURM/state.json: a clock that only tests move, the jobs, and what goes wrong. It has nothing but
the standard library, knows the options that hpcrl uses, and refuses all others.
"""

import argparse
import contextlib
import fcntl
import json
import os
import re
import shlex
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ["FAKE_SLURM"])
AWAY = "Unable to contact slurm controller (connect failure)"
TIMED_OUT = "Socket timed out on send/recv operation"
Values = dict[str, Any]
ALIVE = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING", "REQUEUE_HOLD")


class Failure(Exception):
    """A command ends with status 1 and these words."""


def main(name: str, arguments: list[str]) -> int:
    with open(FOLDER / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = json.loads((FOLDER / "state.json").read_text())
        state["calls"].append([name, *arguments])
        fate = next_fate(state, name)
        try:
            if state["now"] < state["away_until"] and name != "sacct":
                raise Failure(away(name))
            if fate in ("refuse", "lose"):
                raise Failure(state["words"] if fate == "refuse" else lost(name))
            output = COMMANDS[name](state, arguments)
            if fate == "lose after":
                raise Failure(lost(name))
            if fate == "silent after":
                output = ""
        except Failure as failure:
            output, status = f"{failure}\n", 1
        else:
            status = 0
        (FOLDER / "state.new").write_text(json.dumps(state, indent=1))
        os.replace(FOLDER / "state.new", FOLDER / "state.json")
    if fate == "hang after":
        time.sleep(60)
    with contextlib.suppress(BrokenPipeError):
        print(output, end="", file=sys.stderr if status else sys.stdout)
    return status


def next_fate(state: Values, name: str) -> str:
    """What was planned for this call: the first plan that is left for this command."""
    for number, (command, fate) in enumerate(state["plans"]):
        if command == name:
            del state["plans"][number]
            return fate
    return ""


def away(name: str) -> str:
    if name == "sbatch":
        return f"sbatch: error: Batch job submission failed: {AWAY}"
    if name == "squeue":
        return f"slurm_load_jobs error: {AWAY}"
    if name == "scancel":
        return f"scancel: error: {AWAY}"
    return f"slurm_load_ctl_conf error: {AWAY}"


def lost(name: str) -> str:
    if name == "sbatch":
        return f"sbatch: error: Batch job submission failed: {TIMED_OUT}"
    return f"{name}: error: slurm_receive_msg: {TIMED_OUT}\nslurm_load_jobs error: {TIMED_OUT}"


def sbatch(state: Values, arguments: list[str]) -> str:
    script = Path(arguments[-1])
    if not script.is_file():
        raise Failure(f"sbatch: error: Unable to open file {script}")
    given = [*arguments[:-1], *options_of(script.read_text())]
    parser = parser_of("--parsable")
    for option in ("--array", "--comment", "--job-name", "--chdir", "--partition", "--begin", "--dependency"):
        parser.add_argument(option)
    hetjob = given.index("hetjob") if "hetjob" in given else len(given)
    # An option of the command line counts before the same option in the script.
    options, _ = parser.parse_known_args(list(reversed(given[:hetjob])))
    partition = options.partition or "cpu"
    if partition not in state["partitions"]:
        raise Failure(
            f"sbatch: error: invalid partition specified: {partition}\n"
            "sbatch: error: Batch job submission failed: Invalid partition name specified"
        )
    job = state["next"]
    kind = "element" if options.array else "component" if "hetjob" in given else ""
    shapes = elements(options.array) if options.array else [0, 1] if kind else [0]
    for number, shape in enumerate(shapes):
        state["jobs"].append(
            {
                "job": job,
                "number": job + number,
                "element": shape if kind == "element" else None,
                "component": shape if kind == "component" else None,
                "state": "PENDING",
                "reason": "Priority",
                "nodes": "",
                "exit": "0:0",
                "partition": partition,
                "comment": options.comment or "",
                "name": options.job_name or script.name,
                "folder": options.chdir or os.getcwd(),
                "submitted": state["now"],
                "first": state["now"],
                "started": None,
                "ended": None,
                "begin": 0,
                "requeue": True,
                "past": [],
            }
        )
    state["next"] += len(shapes)
    return f"{job}\n" if options.parsable else f"Submitted batch job {job}\n"


def options_of(text: str) -> list[str]:
    """The #SBATCH lines, in the order of the file."""
    found = [line.removeprefix("#SBATCH").strip() for line in text.splitlines() if line.startswith("#SBATCH")]
    return [word for line in found for word in shlex.split(line)]


def elements(text: str) -> list[int]:
    spans = [span.split("-") for span in text.partition("%")[0].split(",")]
    return [number for span in spans for number in range(int(span[0]), int(span[-1]) + 1)]


def squeue(state: Values, arguments: list[str]) -> str:
    parser = parser_of("--noheader", "--all", "--array")
    for option in ("--states", "--jobs", "--user", "--format"):
        parser.add_argument(option)
    options = parser.parse_args(arguments)
    jobs = [job for job in visible(state) if options.states == "all" or job["state"] in ALIVE]
    # Slurm forgets what ended more than MinJobAge ago.
    jobs = [job for job in jobs if job["ended"] is None or state["now"] - job["ended"] < 300]
    if options.jobs:
        wanted = options.jobs.split(",")
        jobs = [job for job in jobs if named(job, wanted)]
        if not jobs and len(wanted) == 1:
            raise Failure("slurm_load_jobs error: Invalid job id specified")
    if not options.array:
        jobs = gathered(jobs)
    return "".join(squeue_line(job, options.format) for job in jobs)


def squeue_line(job: Values, template: str) -> str:
    letters = {
        "i": job.get("ids") or id_of(job),
        "A": str(job["number"]),
        "T": job["state"],
        "r": job["reason"],
        "P": job["partition"],
        "N": job["nodes"],
        "k": job["comment"] or "(null)",
    }
    return re.sub("%([a-zA-Z])", lambda found: letters[found[1]], template) + "\n"


def gathered(jobs: list[Values]) -> list[Values]:
    """Elements that wait are one line, as without --array."""
    lines: list[Values] = []
    waiting: dict[int, list[int]] = {}
    for job in jobs:
        if job["element"] is None or job["state"] != "PENDING":
            lines.append(job)
        elif job["job"] in waiting:
            waiting[job["job"]].append(job["element"])
        else:
            waiting[job["job"]] = [job["element"]]
            lines.append(job)
    for job in lines:
        if job["state"] == "PENDING" and job["element"] is not None:
            job["ids"] = f"{job['job']}_[{','.join(map(str, waiting[job['job']]))}]"
    return lines


def sacct(state: Values, arguments: list[str]) -> str:
    parser = parser_of("--allocations", "--parsable2", "--noheader", "--duplicates")
    for option in ("--delimiter", "--format", "--jobs", "--user", "--starttime"):
        parser.add_argument(option)
    options = parser.parse_args(arguments)
    if not state["accounting"]:
        raise Failure("Slurm accounting storage is disabled")
    lines = []
    for job in visible(state):
        if not options.jobs or named(job, options.jobs.split(",")):
            records = [*job["past"], job] if options.duplicates else [job]
            lines += [sacct_line(state, job, record, options) for record in records]
    return "".join(lines)


def sacct_line(state: Values, job: Values, record: Values, options: argparse.Namespace) -> str:
    fields = {
        "JobIDRaw": str(job["number"]),
        "JobID": id_of(job),
        "State": record["state"] + (" by 1000" if record["state"] == "CANCELLED" else ""),
        "ExitCode": record["exit"],
        "Submit": when(record["submitted"]),
        "Start": when(record["started"]),
        "End": when(record["ended"]),
        "NodeList": record["nodes"] or "None assigned",
        "Reason": "None",
        "MaxRSS": "",
        "Elapsed": "00:01:00",
        "JobName": job["name"],
        "WorkDir": job["folder"],
        "Comment": job["comment"] if state["accounting_comments"] else "",
    }
    return options.delimiter.join(fields[name] for name in options.format.split(",")) + "\n"


def scancel(state: Values, arguments: list[str]) -> str:
    parser = parser_of()
    parser.add_argument("--state")
    parser.add_argument("ids", nargs="+")
    options = parser.parse_args(arguments)
    errors = []
    for wanted in options.ids:
        found = [job for job in state["jobs"] if named(job, [wanted])]
        if not found:
            errors.append(f"scancel: error: Kill job error on job id {wanted}: Invalid job id specified")
        for job in found:
            if job["state"] in ALIVE and options.state in (None, job["state"]):
                job.update(state="CANCELLED", ended=state["now"], exit="0:15" if job["started"] else "0:0")
    if errors:
        raise Failure("\n".join(errors))
    return ""


def scontrol(state: Values, arguments: list[str]) -> str:
    words = [word for word in arguments if not word.startswith("--")]
    match words:
        case ["show", "config"]:
            return (Path(state["texts"]) / f"config-{state['version']}.txt").read_text()
        case ["show", "partition", *_]:
            return (Path(state["texts"]) / f"partition-{state['version']}.txt").read_text()
        case ["show", "job", job]:
            return show_job(state, of_id(state, job)[0])
        case ["requeue", job]:
            return requeue(state, job)
        case ["update", job, start] if job.startswith("JobId=") and start.startswith("StartTime=now+"):
            for each in of_id(state, job.removeprefix("JobId=")):
                each["begin"] = state["now"] + int(start.removeprefix("StartTime=now+"))
                each["reason"] = "BeginTime"
            return ""
    raise Failure(f"invalid keyword: {' '.join(words)}")


def sinfo(state: Values, arguments: list[str]) -> str:
    """Of the partitions that are named, in the one format that hpcrl asks for."""
    match arguments:
        case ["--noheader", "--exact", partitions, "--format=%D|%c|%m|%G"] if partitions.startswith("--partition="):
            names = partitions.removeprefix("--partition=").split(",")
            return "".join(f"{line}\n" for name in names for line in state["nodes"][name])
    raise Failure(f"unknown arguments: {arguments}")


def show_job(state: Values, job: Values) -> str:
    """The fields that somebody reads; the real command has sixty. While a job ends, its state says only that."""
    ran = (state["now"] - job["started"]) if job["started"] else 0
    hours, rest = divmod(int(ran), 3600)
    fields = {
        "JobId": job["job"],
        "JobState": job["state"],
        "Restarts": len(job["past"]),
        "RunTime": f"{hours:02}:{rest // 60:02}:{rest % 60:02}",
        "TimeLimit": "01:00:00",
        "PreemptTime": when(state["now"]) if job.get("preempted") else "None",
    }
    return " ".join(f"{name}={value}" for name, value in fields.items()) + "\n"


def requeue(state: Values, wanted: str) -> str:
    for job in of_id(state, wanted):
        if not state["requeue_allowed"] or not job["requeue"]:
            raise Failure(f"Requested operation is presently disabled for job {wanted}")
        if job["component"]:
            raise Failure(f"Job not heterogeneous job leader for job {wanted}")
        if job["state"] == "PENDING":
            raise Failure(f"Job is pending execution for job {wanted}")
        again(state, job, "REQUEUED" if job["state"] in ALIVE else job["state"])
    return ""


def again(state: Values, job: Values, ending: str) -> None:
    """The present incarnation becomes a past one, and the next is queued."""
    record = {name: job[name] for name in ("exit", "nodes", "submitted", "started")}
    job["past"].append(record | {"state": ending, "ended": job["ended"] or state["now"]})
    job.update(state="PENDING", reason="BeginTime", nodes="", exit="0:0", started=None, ended=None)
    job.update(submitted=state["now"], begin=state["now"] + 121)


def of_id(state: Values, wanted: str) -> list[Values]:
    found = [job for job in state["jobs"] if named(job, [wanted])]
    if not found:
        raise Failure(f"Invalid job id specified for job {wanted}")
    return found


def visible(state: Values) -> list[Values]:
    return [job for job in state["jobs"] if state["now"] - job["first"] >= state["visible_after_s"]]


def named(job: Values, wanted: list[str]) -> bool:
    return bool({id_of(job), str(job["job"]), str(job["number"])} & set(wanted))


def id_of(job: Values) -> str:
    if job["element"] is not None:
        return f"{job['job']}_{job['element']}"
    return str(job["job"]) if job["component"] is None else f"{job['job']}+{job['component']}"


def when(seconds: float | None) -> str:
    return "Unknown" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def parser_of(*flags: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for flag in flags:
        parser.add_argument(flag, action="store_true")
    return parser


COMMANDS = {
    "sbatch": sbatch,
    "squeue": squeue,
    "sacct": sacct,
    "scancel": scancel,
    "scontrol": scontrol,
    "sinfo": sinfo,
}

if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[0]).name, sys.argv[1:]))
