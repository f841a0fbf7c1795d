"""Spans of time, apart and in order."""

from collections.abc import Iterable, Sequence

Span = tuple[float, float]


def united(spans: Iterable[Span]) -> list[Span]:
    united: list[Span] = []
    for begin, end in sorted(spans):
        if united and begin <= united[-1][1]:
            united[-1] = (united[-1][0], max(end, united[-1][1]))
        else:
            united.append((begin, end))
    return united


def length(spans: Iterable[Span]) -> float:
    return sum(end - begin for begin, end in spans)


def shared(some: Sequence[Span], others: Sequence[Span]) -> float:
    """How long both are."""
    return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in some for b in others)
