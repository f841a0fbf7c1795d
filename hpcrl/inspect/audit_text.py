"""An audit as a terminal shows it, and how far it is while it reads."""

import sys
import time
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from hpcrl.foreign import plain
from hpcrl.inspect.views.audit import Audit, Told, Unnamed
from hpcrl.inspect.words import counted
from hpcrl.placement.sizes import size_in_words

EVERY_S = 2.0
NAMES_SHOWN = 20


def told_on_stderr() -> Told:
    """From the third second on, a line now and then: what has been read, and what is read next."""
    last_s, files, size = time.monotonic(), 0, 0

    def told(name: str, more: int) -> None:
        nonlocal last_s, files, size
        if time.monotonic() - last_s >= EVERY_S:
            last_s = time.monotonic()
            text = f"{counted(files, 'file')}, {size_in_words(size)} read; now {name}, {size_in_words(more)}"
            print(plain(text), file=sys.stderr, flush=True)
        files, size = files + 1, size + more

    return told


def render_audit(view: Audit) -> RenderableType:
    whole = f"{counted(view.files, 'file')} that journals name, {size_in_words(view.bytes)}, compared by size and CRC."
    parts: list[RenderableType] = [Text(plain(view.run_dir), style="bold"), Text(whole)]
    if view.damaged:
        parts += [Text(), Text(f"Damaged: {len(view.damaged)}", style="bold red")]
        parts += [Text(plain(f"  {it.what}")) for it in view.damaged]
    else:
        parts.append(Text("None is damaged.", style="green"))
    parts += _unnamed("Named by no line that counts", view.orphans)
    parts += _unnamed("Temporary; left by a process that was killed, unless the run is running", view.leftovers)
    if view.moved:
        parts += [Text(), Text("Exports that lie no more where they were written")]
        parts += [Text(plain(f"  {name}")) for name in view.moved]
    if view.gone:
        parts += [Text(), Text("Archives of samples that are gone")]
        parts += [Text(plain(f"  {name}")) for name in _first(view.gone)]
    return Group(*parts, Text(), Text("What resume would do"), *(Text(plain(f"  {line}")) for line in view.resume))


def _unnamed(title: str, found: Sequence[Unnamed]) -> list[RenderableType]:
    if not found:
        return []
    size = size_in_words(sum(it.bytes for it in found))
    lines = _first([f"{it.file}, {size_in_words(it.bytes)}" for it in found])
    head = Text(f"{title}: {counted(len(found), 'file')}, {size}", style="yellow")
    return [Text(), head, *(Text(plain(f"  {line}")) for line in lines)]


def _first(lines: Sequence[str]) -> list[str]:
    """Of many the first, and how many more there are."""
    more = len(lines) - NAMES_SHOWN
    return [*lines[:NAMES_SHOWN], *([f"and {more} more"] if more > 0 else [])]
