"""Where processes listen, as the kernel tells it."""

import contextlib
import os
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from support.cluster import children_of

LISTENS = "0A"


def family_of(pid: int) -> list[int]:
    """A process and all that come from it."""
    return [pid, *(each for child in children_of(pid) for each in family_of(child))]


def listening(pid: int) -> set[tuple[str, int]]:
    """(address, port) of the TCP sockets at which a process accepts connections."""
    inodes, found = set(_sockets(pid)), set()
    # A process may vanish while it is looked at.
    with contextlib.suppress(OSError):
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                local, state, inode = (line.split()[column] for column in (1, 3, 9))
                if state == LISTENS and inode in inodes:
                    host, _, port = local.partition(":")
                    found.add((_address(host), int(port, 16)))
    return found


def _sockets(pid: int) -> Iterator[str]:
    """Inodes of the sockets that a process has open."""
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield from re.findall(r"^socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{descriptor}"))


def _address(written: str) -> str:
    """As people write it; the kernel writes words in its own byte order."""
    words = [int(written[at : at + 8], 16) for at in range(0, len(written), 8)]
    return socket.inet_ntop(
        socket.AF_INET if len(words) == 1 else socket.AF_INET6, struct.pack(f"={len(words)}I", *words)
    )
