"""Numbers as a person reads them."""


def duration(seconds: float) -> str:
    """A time span as a person reads it: 8 s, 1:05, 2:03:04."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{whole % 60:02d}"
    return f"{minutes}:{whole % 60:02d}" if minutes else f"{whole} s"


def counted(number: int, name: str) -> str:
    """1 worker, 3 workers."""
    return f"{number} {name}{'' if number == 1 else 's'}"


def quantity(value: float) -> str:
    """A rate in three digits: 870, 12.3k, 1.2M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
