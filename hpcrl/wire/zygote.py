"""What an agent and its zygote tell each other, JSON over a socket pair; producer → consumer above each."""

import msgspec

from hpcrl.wire.address import Network


class WorkerArgs(msgspec.Struct, frozen=True):
    """agent → worker: all that it is told. `device` is as torch names it; `cpus` are where it runs, none: anywhere;
    `servers` are sockets of what makes responses for it, by model."""

    run_dir: str
    attempt: int
    rank: int
    master: str
    network: Network
    out: str
    err: str
    device: str = "cpu"
    device_uuid: str = ""
    environment: dict[str, str] = {}
    cpus: tuple[int, ...] = ()
    servers: dict[str, str] = {}


class HousekeeperArgs(msgspec.Struct, frozen=True):
    """agent → housekeeper: all that it is told, the chores apart."""

    run_dir: str
    attempt: int
    node: int
    heartbeat_s: float


# ── agent → zygote ────────────────────────────────────────────────────────────────────────────────────────────────────
class Fork(msgspec.Struct, frozen=True, tag=True):
    """Start a worker."""

    worker: WorkerArgs


class ForkHousekeeper(msgspec.Struct, frozen=True, tag=True):
    """Start a housekeeper; the socket by which it hears of chores comes along."""

    housekeeper: HousekeeperArgs


class KillAll(msgspec.Struct, frozen=True, tag=True):
    """SIGKILL every worker, and the housekeeper."""


# ── zygote → agent ────────────────────────────────────────────────────────────────────────────────────────────────────
class Forked(msgspec.Struct, frozen=True, tag=True):
    """A worker was started; without a rank, a housekeeper."""

    pid: int
    attempt: int
    rank: int | None


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A worker, or a housekeeper, has ended; `exit_code` is None where a signal ended it, the kernel's where it is
    `out_of_memory`."""

    pid: int
    how: str
    exit_code: int | None
    signal: str = ""
    out_of_memory: bool = False


class Unimportable(msgspec.Struct, frozen=True, tag=True):
    """The zygote ends: something that workers need cannot be imported on this node."""

    error: str


ToZygote = Fork | ForkHousekeeper | KillAll
FromZygote = Forked | Ended | Unimportable
