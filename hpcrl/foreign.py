"""Texts that hpcrl did not write (of user's code, of libraries, paths), made fit to be sent and shown."""

import re
import sysconfig
import traceback
from pathlib import Path

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


_NOT_USERS = (str(Path(__file__).parent), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), "<")
"""How names begin of files that are hpcrl's, Python's or installed."""


def users_frames(error: BaseException) -> str:
    """The lines of a traceback that are of files of the user's, those of the error that came first before others."""
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None and before not in chain:
        chain.append(before)
    frames = [frame for each in reversed(chain) for frame in traceback.extract_tb(each.__traceback__)]
    return "".join(traceback.format_list([it for it in frames if not it.filename.startswith(_NOT_USERS)]))
