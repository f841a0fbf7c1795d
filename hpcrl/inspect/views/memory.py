"""What the calls of a run had in memory, beside what its plan had expected."""

import msgspec

from hpcrl.inspect.reader import RunReader


class CallMemory(msgspec.Struct, frozen=True):
    """Of the fullest worker of a call, in bytes."""

    name: str
    expected: float | None
    """As `hpcrl plan` estimates it: models and what a call takes besides. None where nobody could say it."""
    peak: int | None
    """The most that was in use in a call, over all attempts; None where nothing was measured."""


class Memory(msgspec.Struct, frozen=True):
    """The JSON of `hpcrl inspect RUN memory --json`."""

    calls: list[CallMemory]
    """The fullest first."""
    counted: str
    """What a peak counts."""


OF_DEVICE = "tensors on the GPU"
OF_PROCESS = "all of the worker's process, in which libraries take several hundred MiB on top of what is expected"


def memory(reader: RunReader) -> Memory:
    computing = [it.computing for it in reader.activities.values() if it.computing is not None]
    expected = {call: size for it in computing for call, size in it.memory.items()}
    peaks = {call: total.peak for call, total in reader.totals().items() if total.peak}
    calls = [CallMemory(call, expected.get(call), peaks.get(call)) for call in expected | peaks]
    calls.sort(key=lambda call: -(call.peak or call.expected or 0.0))
    on_cpus = not computing or any(it.speeds for it in computing)
    return Memory(calls, OF_PROCESS if on_cpus else OF_DEVICE)
