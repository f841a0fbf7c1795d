"""Which models of a run can be had: of which steps there are checkpoints, and why there are none of the others."""

import msgspec


class Exportable(msgspec.Struct, frozen=True):
    """A role in a checkpoint."""

    step: int
    role: str
    dtype: str
    """What it is written in without --dtype; empty where the role knows no types."""
    shards: int
    bytes: int
    """Of its shards."""
    folder: str
    """Where it has been written to already; else empty."""


class Missing(msgspec.Struct, frozen=True):
    """Steps from `first` to `last` that cannot be had."""

    first: int
    last: int
    why: str


class Exports(msgspec.Struct, frozen=True):
    """The newest step first. The JSON of `hpcrl export RUN --list --json`."""

    run_dir: str
    exportable: tuple[Exportable, ...]
    missing: tuple[Missing, ...]
    not_trained: tuple[str, ...]
    """Roles that have the weights of their own folders."""
