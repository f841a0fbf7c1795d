"""How much of what its devices can do a run makes of them: the operations of its models over their peak (MFU)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.shown_settings import shown_settings
from hpcrl.placement.peak_flops import TERA, peak_of


@dataclass
class Peaks:
    """Of one attempt: what the workers of each call can do, in the type of numbers of its role."""

    workers: int
    """That have models."""
    said: str = ""
    """What the peak is, or which is not known, and what to set."""
    by_call: dict[str, float] = field(default_factory=dict)
    """Operations a second of one worker, of the calls of which it is known."""

    def mfu(self, call: str, flops: float, workers_s: float) -> float | None:
        """Of a call, in which all of its workers together were for so long."""
        peak = self.by_call.get(call)
        return None if not peak or not flops or workers_s <= 0 else flops / (peak * workers_s)

    def whole(self, flops: Mapping[str, float], seconds: float) -> float | None:
        """Of all workers over a time, in which calls had so many operations. None where the peak of one is unknown."""
        counted = {call: each for call, each in flops.items() if each}
        if not counted or counted.keys() - self.by_call.keys() or seconds <= 0 or not self.workers:
            return None
        ideal_s = sum(each / self.by_call[call] for call, each in counted.items())
        return ideal_s / (seconds * self.workers)


def newest_peaks(reader: RunReader) -> Peaks:
    """As the newest attempt has said it that has."""
    found = (peaks_of(reader, number) for number in sorted(reader.attempts, reverse=True))
    return next((peaks for peaks in found if peaks.workers), Peaks(0))


def peaks_of(reader: RunReader, attempt: int) -> Peaks:
    """As an attempt has said what it computes on; empty where it has not."""
    known = reader.attempts[attempt].activity.computing
    if known is None or not known.hardware:
        return Peaks(0)
    settings = shown_settings(reader.run)
    found = Peaks(sum(known.hardware.values()))
    said: dict[str, str] = {}
    for call, role in reader.attempts[attempt].roles.items():
        dtype = _dtype(settings, role)
        if dtype is None:
            continue
        peak, said[dtype] = _peak(settings["cluster"].get("peak_tflops"), known.hardware, known.speeds, dtype)
        if peak:
            found.by_call[call] = peak
    found.said = "; ".join(said.values())
    return found


def _dtype(settings: Mapping[str, Any], role: str) -> str | None:
    """The type of numbers of a role's model; None where it has none."""
    section = settings.get(role)
    dtype = section.get("dtype") if isinstance(section, dict) else None
    return dtype if isinstance(dtype, str) else None


def _peak(
    given: float | None, hardware: Mapping[str, int], speeds: Mapping[str, float], dtype: str
) -> tuple[float | None, str]:
    """Operations a second of one worker, the mean of all; and in words what they are."""
    if given:
        return given * TERA, f"{given:g} TFLOP/s, as cluster.peak_tflops says"
    names = ", ".join(sorted(hardware))
    if dtype in speeds:
        return speeds[
            dtype
        ], f"{speeds[dtype] / TERA:.3g} TFLOP/s, what a worker's CPU ({names}) did in a trial in {dtype}"
    known = {name: peak_of(name, dtype) for name in hardware}
    if unknown := sorted(name for name, peak in known.items() if peak is None):
        return None, f"the peak of {', '.join(unknown)} in {dtype} is not known: set cluster.peak_tflops"
    mean = sum((known[name] or 0.0) * count for name, count in hardware.items()) / sum(hardware.values())
    return mean, f"{mean / TERA:.4g} TFLOP/s, dense {dtype} of {names}"
