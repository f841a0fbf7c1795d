"""When a run has ended, for the commands that follow one: from its directory, and from the queue where it has jobs."""

import math
import time
from collections.abc import Callable

from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.queue import Queue
from hpcrl.inspect.views.status import ENDED, GOES_ON, is_over, judge

ASK_S = 15.0
"""Slurm is asked about a run at most this often."""


def end_of(run_dir: RunDirectory) -> Callable[[], bool]:
    """Says whether nothing more will come. A run on Slurm may go on after an attempt has ended."""
    from hpcrl.launch.queues import has_queue, queue_of

    if not has_queue(run_dir):
        return lambda: is_over(run_dir) or _came_to_nothing(run_dir)
    asked_at = -math.inf if is_over(run_dir) else time.monotonic()

    def has_ended() -> bool:
        nonlocal asked_at
        if judge(run_dir, run_dir.newest_attempt(), None, Queue(missing="nobody was asked"))[0] in ENDED:
            return True
        if time.monotonic() - asked_at < ASK_S:
            return False
        asked_at = time.monotonic()
        queue = queue_of(run_dir)
        assert queue is not None
        return is_over(run_dir) if queue.missing else not _goes_on(run_dir, queue)

    return has_ended


def _came_to_nothing(run_dir: RunDirectory) -> bool:
    """Whether the newest submission is gone before its master could begin an attempt."""
    from hpcrl.launch.launcher import Launchers

    nonce = run_dir.newest_nonce()
    if nonce is None or run_dir.newest_attempt_of(nonce) is not None:
        return False
    submission = next(each for each in run_dir.submissions() if each.nonce == nonce)
    return not Launchers(run_dir).of(submission).is_alive(run_dir, submission)


def _goes_on(run_dir: RunDirectory, queue: Queue) -> bool:
    return judge(run_dir, run_dir.newest_attempt(), None, queue)[0] in GOES_ON
