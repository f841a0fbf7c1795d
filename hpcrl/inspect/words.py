"""Numbers as a person reads them."""


def duration(seconds: float) -> str:
    """A time span as a person reads it: 8 s, 1 min 05 s, 2 h 03 min."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def counted(number: int, name: str) -> str:
    """1 worker, 3 workers."""
    return f"{number} {name}{'' if number == 1 else 's'}"


def quantity(value: float) -> str:
    """A rate in three digits: 870, 12.3k, 1.2M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
