"""Who claims an attempt: this process, so that anybody on its host can tell whether it still lives."""

import os
import socket
import time
from pathlib import Path

from hpcrl.durable.records import Claim


def claim_of_this_process(submission: str) -> Claim:
    stat_line = Path("/proc/self/stat").read_text()
    # The command's name, in parentheses, may hold anything; the start time is field 22, the twentieth behind it.
    started = int(stat_line.rpartition(")")[2].split()[19])
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return Claim(submission, socket.gethostname(), os.getpid(), started, boot_id, time.time())
