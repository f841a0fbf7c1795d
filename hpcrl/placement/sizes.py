"""Bytes as a person reads them."""

GIB = 2**30


def size_in_words(bytes_: float) -> str:
    """In the largest unit of which it is 1 or more."""
    for size, unit in ((GIB, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if bytes_ >= size:
            return f"{bytes_ / size:.2f} {unit}"
    return f"{bytes_:.0f} bytes"
