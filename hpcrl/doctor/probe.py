"""What `hpcrl doctor` runs on every node: `python -m hpcrl.doctor.probe FOLDER`.

The probes find each other by greetings in the folder, which all nodes share. Each measures its own node, then the next
node in the ring as a reader of what that one writes, and connects to all others. It publishes result-N.json and goes on
answering until all results are there. Has no opinion.
"""

import errno
import os
import resource
import socket
import sys
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpcrl.config.cluster import ClusterConfig
from hpcrl.doctor.measure_disk import measure_disk
from hpcrl.doctor.measure_gpus import measure_gpus
from hpcrl.doctor.measure_pair import measure_pair
from hpcrl.doctor.measurements import NodeMeasurements, node_name, software_here
from hpcrl.doctor.peer import Hello, Listener
from hpcrl.durable.files import Files
from hpcrl.errors import ConfigurationError
from hpcrl.wire.address import Network, address_of_this_node, addresses_here, network_of

GREETING_DEADLINE_S = 90.0
"""A directory's contents may be remembered for a minute on NFS (acdirmax)."""
FOLDER_DEADLINE_S = 30.0
SEEN_DEADLINE_S = 70.0
AS_IT_COMES = ClusterConfig()


def main(arguments: Sequence[str]) -> int:
    parser = ArgumentParser(prog="hpcrl.doctor.probe")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--index", type=int, default=int(os.environ.get("SLURM_PROCID") or 0))
    parser.add_argument("--count", type=int, default=int(os.environ.get("SLURM_STEP_NUM_TASKS") or 1))
    parser.add_argument("--deadline", type=float, default=SEEN_DEADLINE_S, help="seconds to wait for one file")
    parser.add_argument("--interface", help="cluster.interface")
    parser.add_argument("--ports", help="cluster.ports")
    given = parser.parse_args(arguments)
    os.umask(0o077)
    cluster = ClusterConfig(interface=given.interface, ports=given.ports)
    try:
        probe(given.folder, given.index, given.count, given.deadline, cluster)
    except OSError as error:
        print(f"{node_name()}: {error}", file=sys.stderr)
        return 1
    return 0


def probe(
    folder: Path,
    index: int,
    count: int,
    deadline_s: float = SEEN_DEADLINE_S,
    cluster: ClusterConfig = AS_IT_COMES,
) -> None:
    """Measure, publish, and stay until the others have measured too. Raises OSError where the folder is no use."""
    _find(folder)
    files = Files(folder)
    listener, network, complaint = _listener(index, cluster, folder)
    try:
        files.publish(folder / f"hello-{index}.json", msgspec.json.encode(listener.hello), "hello")
        measured = _this_node(folder, index, network, complaint)
        present = _await(files, "hello", count, GREETING_DEADLINE_S)
        hellos = [msgspec.json.decode(files.read(folder / name), type=Hello) for name in present]
        pairs = tuple(measure_pair(folder, index, hello, count, deadline_s) for hello in hellos if hello.index != index)
        absent = tuple(sorted(set(range(count)) - {hello.index for hello in hellos}))
        measured = msgspec.structs.replace(measured, pairs=pairs, absent=absent)
        files.publish(folder / f"result-{index}.json", msgspec.json.encode(measured), "result")
        _await(files, "result", len(hellos), 3 * deadline_s + GREETING_DEADLINE_S)
    finally:
        listener.close()


def _find(folder: Path) -> None:
    """The folder was made moments ago, on another node perhaps. Made here it would be shared with nobody."""
    until = time.monotonic() + FOLDER_DEADLINE_S
    while folder.name not in os.listdir(folder.parent) or not folder.is_dir():
        if time.monotonic() > until:
            raise FileNotFoundError(errno.ENOENT, "is not on this node", str(folder))
        time.sleep(0.1)


def _await(files: Files, kind: str, count: int, deadline_s: float) -> list[str]:
    """Names of the files of a kind, once there are so many; fewer after the deadline."""
    until = time.monotonic() + deadline_s
    while True:
        names = files.listing(files.root)
        found = [name for name in names if name.startswith(f"{kind}-") and name.endswith(".json")]
        # Without our own greeting: whoever asked has what he wants and has cleared away.
        if len(found) >= count or time.monotonic() > until or not names:
            return found
        time.sleep(0.05)


def _listener(index: int, cluster: ClusterConfig, folder: Path) -> tuple[Listener, Network, str]:
    """A listener, where it listens, and why that is not where the settings say."""
    default = address_of_this_node()
    try:
        network = network_of(cluster, default)
        return Listener(index, network, folder), network, ""
    except ConfigurationError as error:
        network = network_of(AS_IT_COMES, default)
        return Listener(index, network, folder), network, str(error)


def _this_node(folder: Path, index: int, network: Network, complaint: str) -> NodeMeasurements:
    others = [each for each in addresses_here() if each.host != network.host and each.interface != "lo"]
    return NodeMeasurements(
        index=index,
        name=node_name(),
        host=socket.gethostname(),
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        address=network.host,
        interface=network.interface,
        others=() if network.chosen else tuple(others),
        complaint=complaint,
        cpus=len(os.sched_getaffinity(0)),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        software=software_here(),
        disk=measure_disk(folder),
        gpus=measure_gpus(),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
