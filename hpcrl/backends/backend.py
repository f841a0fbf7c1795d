"""What a backend of training or generation declares in its file: what it can do, and where the code is that does it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hpcrl.plugins import Room

CutBy = Literal["rows", "elements"]
"""What of a parameter goes to a rank as a whole: a row, so that its part is a tensor of as many dimensions (of a
vector: an element), or an element. Parts that are cut by rows begin aligned; those cut by elements lie side by side."""


@dataclass(frozen=True)
class Package:
    """A distribution that a backend needs beside what hpcrl installs; `extra` of hpcrl's brings it."""

    name: str
    extra: str
    tested: tuple[str, str]
    """The first version that it was tested with, and the first that it was not."""


@dataclass(frozen=True)
class Server:
    """A program that makes responses in a process of its own, under an interpreter that has these packages."""

    module: str
    """Its own in hpcrl, which that interpreter runs as a file."""
    package: tuple[str, ...]
    """The names that the distribution may have."""
    tested: tuple[str, str]
    """As of a package."""
    coolest: float
    """The lowest temperature that it takes."""
    folders: tuple[str, ...] = ()
    """Variables that say where it keeps files: each is given a folder of its own."""
    variables: tuple[tuple[str, str], ...] = ()
    """What else it is told so."""


@dataclass(frozen=True, kw_only=True)
class Backend:
    """One way to hold and run a role's model."""

    train: bool
    """Whether it can train a model."""
    generate: bool | Server
    """Whether it can generate from one; a server where that does it, and no worker's code. It makes responses alone,
    with copies, for calls that name the backend; any other backend gives predictions, too."""
    model_kinds: tuple[str, ...] = ("own",)
    """Whose models it holds: hpcrl's own, and transformers'."""
    axes: tuple[str, ...]
    """The axes of a layout over which it splits a role: dp, tp, pp."""
    dtypes: tuple[str, ...]
    """What it computes in, as `<role>.dtype` has it."""
    devices: tuple[str, ...] = ("cpu", "cuda")
    """Where it computes, as `cluster.device` has it."""
    models: Mapping[str, Any] = field(default_factory=dict)
    """What a model has to be, by fields of `DecoderConfig`, where not all that hpcrl knows are computed."""
    lora: bool = False
    """Whether it can train low-rank adapters of a model in the place of its parameters."""
    shards: CutBy | Literal[""] = ""
    """What of every parameter each data-parallel rank has a part of, its rows or its elements, rather than all of its
    stage: then all of them compute in step, in inference too. Empty where it has all."""
    adds_up: Literal["", "update", "micro_batch"] = ""
    """Where a data-parallel rank keeps its part of the gradient's sum alone: once an update, or after each micro-batch.
    Empty where it keeps all of a gradient."""
    offloads: tuple[str, ...] = ()
    """What it can keep in the host's memory, as `<role>.offload` has it."""
    packages: tuple[Package, ...] = ()
    """What has to be installed for it."""
    inexact_on: tuple[str, ...] = ()
    """The devices on which it only promises tolerance: an update that is made again there is the same up to rounding;
    on all others it has the same bits."""
    engine: str
    """The engine's class, as module:Class; workers alone import it."""

    @property
    def server(self) -> Server | None:
        return self.generate if isinstance(self.generate, Server) else None

    @property
    def predict(self) -> bool:
        """Whether it gives predictions: inference and evaluation need no more."""
        return self.server is None


BACKENDS = Room("hpcrl.backends", "BACKEND", Backend)
