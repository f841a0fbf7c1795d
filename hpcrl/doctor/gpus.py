"""The GPUs of a node and how they reach each other, from nvidia-smi's texts."""

import re
import shutil
import subprocess

from hpcrl.doctor.measurements import GpuMeasurements

TIMEOUT_S = 20.0
_GPU = re.compile(r"^GPU (\d+): (.*?) \(UUID: (\S+)\)", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def gpus_here() -> GpuMeasurements:
    """No nvidia-smi, or one that fails: no GPUs."""
    listed = _ask("-L")
    if listed is None:
        return GpuMeasurements(tool=False)
    names = parse_list(listed)
    links = parse_topology(_ask("topo", "-m") or "") if len(names) > 1 else {}
    return GpuMeasurements(True, names, links)


def parse_list(text: str) -> tuple[str, ...]:
    """The names in `nvidia-smi -L`, by index; MIG devices are their GPU's."""
    return tuple(found[2] for found in _GPU.finditer(text))


def parse_topology(text: str) -> dict[str, str]:
    """The links between GPUs in `nvidia-smi topo -m`: "0-1" → "NV12". Columns that are no GPU's are left out."""
    rows = [_COLOUR.sub("", line).split() for line in text.splitlines()]
    head = next((row for row in rows if row[:1] == ["GPU0"] and row[1:2] != ["X"]), None)
    if head is None:
        return {}
    columns = [name for name in head if re.fullmatch(r"GPU\d+", name)]
    found = {}
    for row in rows:
        if row[:1] and row[0] in columns and row is not head:
            for column, link in zip(columns, row[1:], strict=False):
                first, second = int(row[0][3:]), int(column[3:])
                if first < second:
                    found[f"{first}-{second}"] = link
    return found


def _ask(*words: str) -> str | None:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        done = subprocess.run([tool, *words], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
