"""Where a node's processes listen: what the settings make of its interfaces, and which port is taken."""

import socket

import pytest

from hpcrl.config.cluster import ClusterConfig
from hpcrl.errors import ConfigurationError
from hpcrl.wire import address
from hpcrl.wire.address import LOOPBACK, InterfaceAddress, Network, addresses_here, listen, network_of

NODE = [
    InterfaceAddress("lo", "127.0.0.1"),
    InterfaceAddress("eth0", "192.168.1.7"),
    InterfaceAddress("ib0", "10.10.3.7"),
    InterfaceAddress("ib0:1", "10.11.3.7"),
]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "addresses_here", lambda: NODE)


def test_the_kernel_is_asked_for_the_interfaces_of_this_machine() -> None:
    here = addresses_here()
    assert InterfaceAddress("lo", LOOPBACK) in here
    assert {each.interface for each in here} <= {name for _, name in socket.if_nameindex()}


@pytest.mark.parametrize(
    ("interface", "found"),
    [
        (None, Network("192.168.1.7", "eth0")),
        ("ib0", Network("10.10.3.7", "ib0", True)),
        ("10.10.0.0/16", Network("10.10.3.7", "ib0", True)),
        ("10.10.9.9/16", Network("10.10.3.7", "ib0", True)),
        ("10.11.0.0/16", Network("10.11.3.7", "ib0:1", True)),
        ("10.10.3.7", Network("10.10.3.7", "ib0", True)),
        ("lo", Network(LOOPBACK, "lo", True)),
    ],
)
def test_an_interface_or_a_network_says_where_this_node_listens(
    node: None, interface: str | None, found: Network
) -> None:
    assert network_of(ClusterConfig(interface=interface), "192.168.1.7") == found


@pytest.mark.parametrize("interface", ["ib1", "ib", "10.12.0.0/16"])
def test_an_interface_that_this_node_has_not_is_refused_with_those_that_it_has(node: None, interface: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        network_of(ClusterConfig(interface=interface), "192.168.1.7")
    said = str(error.value)
    assert f"cluster.interface = {interface}" in said and "Set cluster.interface" in said
    assert "lo (127.0.0.1), eth0 (192.168.1.7), ib0 (10.10.3.7)" in said


def free_ports(count: int) -> tuple[int, int]:
    """A range of which nobody listens to any port now."""
    for first in range(21000, 30000, count):
        held = []
        try:
            held = [socket.create_server((LOOPBACK, first + index)) for index in range(count)]
        except OSError:
            continue
        finally:
            for each in held:
                each.close()
        return first, first + count - 1
    raise AssertionError("no free ports on this machine")


def test_the_first_free_port_of_the_range_is_taken_until_there_is_none() -> None:
    ports = free_ports(3)
    network = Network(ports=ports)
    held = [listen(network) for _ in range(3)]
    try:
        assert [each.getsockname() for each in held] == [(LOOPBACK, port) for port in range(ports[0], ports[1] + 1)]
        with pytest.raises(ConfigurationError, match=rf"cluster\.ports = {ports[0]}-{ports[1]}: none of them is free"):
            listen(network)
    finally:
        for each in held:
            each.close()


def test_an_address_of_another_node_is_no_matter_of_ports() -> None:
    with pytest.raises(OSError, match="assign requested address"):
        listen(Network("198.51.100.1", ports=(21000, 21010)))
