"""What agents leave that end without having told their master why: a verdict each, beside those of the submission.

A master reads them while nodes are missing. The first of a start stays; of several starts of a node the last counts.
"""

import contextlib
import re
from typing import NamedTuple

from hpcrl.durable.exclusive import AlreadyPublishedError
from hpcrl.durable.records import Verdict, encode
from hpcrl.durable.rundir import RunDirectory

_NAME = re.compile(r"(?P<nonce>\w+)\.agent-(?P<node>\d+)\.(?P<job>\d+)\.(?P<restarts>\d+)\.verdict")


class Notice(NamedTuple):
    """Which start of an agent ended, as (job id, restarts), and how."""

    incarnation: tuple[int, int]
    verdict: Verdict


def leave_notice(run: RunDirectory, nonce: str, node: int, incarnation: tuple[int, int], verdict: Verdict) -> None:
    job, restarts = incarnation
    path = run.submission / f"{nonce}.agent-{node}.{job}.{restarts}.verdict"
    with contextlib.suppress(AlreadyPublishedError):
        run.files.publish(path, encode(verdict), "notice")


def read_notices(run: RunDirectory, nonce: str) -> dict[int, Notice]:
    """Node → what the last start of its agent has left."""
    found: dict[int, Notice] = {}
    for name in run.files.listing(run.submission):
        fields = _NAME.fullmatch(name)
        if fields is None or fields["nonce"] != nonce:
            continue
        node, incarnation = int(fields["node"]), (int(fields["job"]), int(fields["restarts"]))
        verdict = run.read_if_there(run.submission / name, Verdict)
        if verdict is not None and (node not in found or found[node].incarnation < incarnation):
            found[node] = Notice(incarnation, verdict)
    return found
