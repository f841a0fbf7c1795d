"""Texts that hpcrl did not write (of user's code, of libraries, paths), made fit to be sent and shown."""

import re

LONGEST = 16384
"""Characters of one text that are sent, stored in a verdict, or shown; a worker's own log keeps it whole."""

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What steers a terminal, turns the direction of writing or cannot be encoded: all but line breaks and tabs."""


def plain(text: str, limit: int = LONGEST) -> str:
    """The text with what cannot be seen written as escapes, and without its middle where it is longer than `limit`."""
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half} characters are left out here …\n{text[-half:]}"
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)
