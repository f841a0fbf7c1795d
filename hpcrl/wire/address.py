"""Where this node's processes listen, and what they announce: address, interface, ports. Nobody else picks them."""

import array
import errno
import fcntl
import ipaddress
import os
import socket
import struct

import msgspec

from hpcrl.config.cluster import ClusterConfig, first_and_last_port
from hpcrl.errors import ConfigurationError

LOOPBACK = "127.0.0.1"
ELSEWHERE = ("192.0.2.1", 9)
"""An address that exists nowhere (RFC 5737): asking which interface leads there sends nothing."""
SIOCGIFCONF = 0x8912
ENTRY = struct.Struct("16s 4x 4s 16x")
"""Linux' struct ifreq on 64 bits: name, (family, port), IPv4 address, (the rest of the union)."""
MOST_ADDRESSES = 1024
BACKLOG = 1024


class InterfaceAddress(msgspec.Struct, frozen=True):
    """An IPv4 address of this node, and the interface that has it."""

    interface: str
    host: str

    def __str__(self) -> str:
        return f"{self.interface} ({self.host})"


class Network(msgspec.Struct, frozen=True):
    """Where a process listens. `interface` is "" where no interface has the address; without `ports`, on any free one.

    `chosen` says that the user chose the interface, not the host name.
    """

    host: str = LOOPBACK
    interface: str = "lo"
    chosen: bool = False
    ports: tuple[int, int] | None = None
    """The first and the last that may be taken."""


LOOPBACK_ONLY = Network()
"""Where all processes are on one machine."""


def network_of(cluster: ClusterConfig, default: str) -> Network:
    """What the settings make of this node; without cluster.interface it is reached at `default`.

    Raises:
        ConfigurationError: this node has no such interface, or no address in that network.
    """
    here, ports = addresses_here(), first_and_last_port(cluster.ports) if cluster.ports else None
    if cluster.interface is None:
        named = [each.interface for each in here if each.host == default]
        return Network(default, named[0] if named else "", ports=ports)
    found = [each for each in here if _is_meant(cluster.interface, each)]
    if not found:
        there = ", ".join(map(str, here)) or "none with an IPv4 address"
        raise ConfigurationError(
            [
                f"cluster.interface = {cluster.interface}, but {socket.gethostname()} has no such interface. It has "
                f"{there}. Set cluster.interface to one of them, or to a network like 10.10.0.0/16 where nodes name "
                "their interfaces differently."
            ]
        )
    return Network(found[0].host, found[0].interface, True, ports)


def _is_meant(wanted: str, address: InterfaceAddress) -> bool:
    try:
        network = ipaddress.ip_network(wanted, strict=False)
    except ValueError:
        return address.interface == wanted
    return ipaddress.ip_address(address.host) in network


def addresses_here() -> list[InterfaceAddress]:
    """The IPv4 addresses of all interfaces that are up, in the kernel's order."""
    answer = array.array("B", bytes(ENTRY.size * MOST_ADDRESSES))
    start, length = answer.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        said = fcntl.ioctl(asking, SIOCGIFCONF, struct.pack("iL", length, start))
    filled = memoryview(answer)[: struct.unpack("iL", said)[0]]
    return [
        InterfaceAddress(os.fsdecode(name.partition(b"\0")[0]), socket.inet_ntoa(host))
        for name, host in ENTRY.iter_unpack(filled)
    ]


def listen(network: Network) -> socket.socket:
    """A socket that listens at the network's address, and there only, on the first of its ports that is free.

    Raises:
        ConfigurationError: none is.
    """
    first, last = network.ports or (0, 0)
    for port in range(first, last + 1):
        try:
            return socket.create_server((network.host, port), backlog=BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise ConfigurationError(
        [
            f"cluster.ports = {first}-{last}: none of them is free at {network.host} of {socket.gethostname()}. A node "
            "needs one for each of its workers and three more, for each run on it. Widen cluster.ports."
        ]
    )


def address_of_this_node() -> str:
    """The IPv4 address that other nodes reach this one at: its host name's, else the default route's.

    LOOPBACK where there is neither: then all processes are on this machine, or nobody finds them.
    """
    try:
        found = socket.gethostbyname(socket.gethostname())
    except OSError:
        found = LOOPBACK
    if not found.startswith("127."):
        return found
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(ELSEWHERE)
        except OSError:
            return LOOPBACK
        return probe.getsockname()[0]
