"""The files of one attempt: its journal, events and metrics, and the housekeeping behind closed steps.

Owns what this attempt writes besides spills and shards. Knows nothing of workers. Compaction and pruning run on one
background thread, the janitor; whatever they did is journalled by the master's thread in `tidy`.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from hpcrl.durable.checkpoints import write_manifest
from hpcrl.durable.files import FileRef
from hpcrl.durable.journal import Checkpointed, Closed, Compacted, Event, Exported, Pruned, open_journal
from hpcrl.durable.recovery import RecoveryPlan, adopt, plan_next_attempt, prune
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.spills import compact
from hpcrl.errors import ExitCode, HpcrlError
from hpcrl.logs import EventLog
from hpcrl.placement.plan import Plan


class SupersededError(HpcrlError):
    """A newer attempt has adopted what this one wrote; nothing that this one does counts any more."""

    exit_code = ExitCode.REQUEUE
