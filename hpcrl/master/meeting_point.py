"""Where nodes find the master of an attempt, and what is left there of those that do not come."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from hpcrl.durable.attempts import failed_rendezvous, newest_nodes
from hpcrl.durable.notices import Notice, read_notices
from hpcrl.durable.rundir import RunDirectory
from hpcrl.nameresolve.filesystem import FilesystemStore
from hpcrl.nameresolve.rendezvous import MasterAddress, announced, publish_master


class MeetingPoint(Protocol):
    """Of one submission."""

    @property
    def root(self) -> Path:
        """The run's directory, as advice names it."""
        ...

    def open(self, attempt: int, address: str) -> None:
        """Tell all nodes where the master of this attempt listens."""

    def announced(self) -> set[int]:
        """The nodes that have been there in this attempt."""
        ...

    def notices(self) -> Mapping[int, Notice]:
        """Node → what the last start of its agent has left."""
        ...

    def failed(self) -> int:
        """How often, since something was finished, nodes were waited for that did not come."""
        ...

    def nodes_before(self) -> tuple[int, ...] | None:
        """Those of the newest attempt that came to a plan."""
        ...


class RunMeetingPoint:
    """In the run's directory. Fulfils `MeetingPoint`."""

    def __init__(self, run: RunDirectory, submission: str) -> None:
        self._run = run
        self._submission = submission
        self._store: FilesystemStore

    @property
    def root(self) -> Path:
        return self._run.root

    def open(self, attempt: int, address: str) -> None:
        self._store = FilesystemStore(self._run.rendezvous(attempt))
        publish_master(self._store, MasterAddress(attempt, address))

    def announced(self) -> set[int]:
        return {record.node for record in announced(self._store)}

    def notices(self) -> Mapping[int, Notice]:
        return read_notices(self._run, self._submission)

    def failed(self) -> int:
        return failed_rendezvous(self._run, self._submission)

    def nodes_before(self) -> tuple[int, ...] | None:
        return newest_nodes(self._run)
