"""How other nodes reach this one."""

import socket

LOOPBACK = "127.0.0.1"
ELSEWHERE = ("192.0.2.1", 9)
"""An address that exists nowhere (RFC 5737): asking which interface leads there sends nothing."""


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
