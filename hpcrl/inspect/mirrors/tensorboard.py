"""Event files of TensorBoard: a step is one record, which has a checksum, so that it is there whole or not at all."""

import os
import socket
import time
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.mirrors.mirror import MirroredStep

BEGINNING = "events.out.tfevents."
VERSION = "brain.Event:2"
"""Of the format, which each file begins with."""


class TensorBoard:
    """Fulfils `Mirror`. Each process writes a file of its own, whose name comes after those that are there."""

    shows_samples = False

    def __init__(self, run: RunDirectory, folder: Path) -> None:
        self._folder = folder
        self._writer: RecordWriter | None = None
        self.how_to_look = f"tensorboard --logdir {folder}"
        self.steps = {step for path in _files(folder) for step in _steps_in(path)}

    def write(self, step: MirroredStep) -> None:
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in step.values.items()]
        self._append(Event(wall_time=step.time, step=step.step, summary=Summary(value=values)))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _append(self, event: Event) -> None:
        if self._writer is None:
            self._writer = RecordWriter(open(self._next(), "xb", opener=_private))  # noqa: SIM115
            self._append(Event(wall_time=time.time(), file_version=VERSION))
        self._writer.write(event.SerializeToString())
        self._writer.flush()

    def _next(self) -> Path:
        """TensorBoard reads files in order of their names, and none before one that it has begun with."""
        newest = max((int(path.name.split(".")[3]) for path in _files(self._folder)), default=0)
        number = max(int(time.time()), newest + 1)
        return self._folder / f"{BEGINNING}{number:010d}.{socket.gethostname()}.{os.getpid()}.0"


MIRROR = TensorBoard


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"{BEGINNING}*") if path.name.split(".")[3].isdecimal())


def _steps_in(path: Path) -> set[int]:
    """Up to a record that is torn, where its writer was killed."""
    events = map(Event.FromString, RawEventFileLoader(str(path)).Load())
    return {event.step for event in events if event.HasField("summary")}
