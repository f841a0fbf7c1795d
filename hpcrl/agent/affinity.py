"""Which CPUs a GPU's worker runs on: those next to its GPU, in fair shares. Pure functions of the kernel's texts."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence


def parse_cpulist(text: str) -> frozenset[int]:
    """The CPUs of a kernel's list, e.g. "0-3,64-67".

    Raises:
        ValueError: it is not such a list.
    """
    cpus: set[int] = set()
    for span in filter(None, text.strip().split(",")):
        low, _, high = span.partition("-")
        cpus |= set(range(int(low), int(high or low) + 1))
    return frozenset(cpus)


def share_cpus(
    near: Sequence[Collection[int]], allowed: Collection[int], cores: Iterable[Collection[int]] = ()
) -> list[tuple[int, ...]]:
    """The CPUs of each worker, given those near its device and those that this process may use at all.

    Workers near the same CPUs split them by whole cores (`cores` are the hardware threads of each); where there are
    fewer cores than workers, they share all of them. A worker that may use nothing near its device, or whose device's
    place is unknown, takes part in everything that is allowed.
    """
    shares: list[tuple[int, ...]] = [()] * len(near)
    domains: dict[frozenset[int], list[int]] = defaultdict(list)
    for worker, cpus in enumerate(near):
        domains[frozenset(cpus) & frozenset(allowed) or frozenset(allowed)].append(worker)
    siblings = {cpu: frozenset(core) for core in cores for cpu in core}
    for domain, workers in domains.items():
        whole = sorted({tuple(sorted(siblings.get(cpu, {cpu}) & domain)) for cpu in domain})
        for place, worker in enumerate(workers):
            low, high = (len(whole) * edge // len(workers) for edge in (place, place + 1))
            mine = whole[low:high] if len(whole) >= len(workers) else whole
            shares[worker] = tuple(sorted(cpu for core in mine for cpu in core))
    return shares
