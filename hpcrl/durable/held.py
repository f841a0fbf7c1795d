"""Shards that stay while somebody reads them, whatever their run removes meanwhile, and the folder made of them."""

import errno
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hpcrl.durable.exclusive import NO_LINKS
from hpcrl.durable.paths import RunPaths
from hpcrl.scratch import ScratchFolder, remove_abandoned

PREFIX = "export-"
A_DAY_S = 86400.0
"""Of a folder that another host has made nobody here can tell whether it is held, where locks do not reach."""


@dataclass(frozen=True)
class HeldShards:
    """The shards by names under which they stay. `why_in_place` says why they have no names of their own; then they
    are open, and their names are those of the descriptors."""

    paths: tuple[Path, ...]
    why_in_place: str = ""


@contextmanager
def held(run: RunPaths, shards: Sequence[Path]) -> Iterator[HeldShards]:
    """Second names in the run's directory, which go afterwards, or after a kill with the next export or attempt.

    Where the run cannot be written, or there are no hard links, the files are held open: on a disk of this node, or
    where this node removes them, they stay; where another removes them, a network filesystem may not keep them.

    Raises:
        FileNotFoundError: one is gone already.
    """
    with ExitStack() as closing:
        try:
            folder = work_folder(run, closing)
            paths = [folder / shard.name for shard in shards]
            for shard, path in zip(shards, paths, strict=True):
                os.link(shard, path, follow_symlinks=False)
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno not in NO_LINKS and not is_read_only(error):
                raise
            yield _opened(shards, str(error.strerror), closing)
        else:
            yield HeldShards(tuple(paths))


def work_folder(run: RunPaths, closing: ExitStack) -> Path:
    """A new folder in the run for an export that is under way, which goes with `closing`, or after a kill with the
    next. Raises OSError where the run cannot be written."""
    run.exporting.mkdir(mode=0o700, exist_ok=True)
    remove_dead(run)
    folder = ScratchFolder(f"{PREFIX}{socket.gethostname()}-", run.exporting)
    closing.callback(folder.remove)
    return folder.path


def remove_dead(run: RunPaths) -> None:
    """Remove what exports have left that were killed."""
    remove_abandoned(f"{PREFIX}{socket.gethostname()}-", run.exporting)
    remove_abandoned(PREFIX, run.exporting, new_s=A_DAY_S)


def is_read_only(error: OSError) -> bool:
    """Whether it says that nothing may be written there."""
    return error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)


def _opened(shards: Sequence[Path], why: str, closing: ExitStack) -> HeldShards:
    opened = []
    for shard in shards:
        opened.append(os.open(shard, os.O_RDONLY | os.O_CLOEXEC))
        closing.callback(os.close, opened[-1])
    return HeldShards(tuple(Path(f"/proc/self/fd/{descriptor}") for descriptor in opened), why)
