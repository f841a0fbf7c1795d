"""docs/troubleshooting.md: what each verdict of `hpcrl inspect RUN why` means, and what to do.

`make docs` writes the page; a test compares it with what the verdicts say now.
"""

from collections.abc import Iterator
from pathlib import Path

from hpcrl.inspect.verdicts import VERDICTS

PAGE = Path(__file__).parent.parent / "docs" / "troubleshooting.md"
FIRST = "\n## "
"""How a section of a verdict begins; what is above the first is written by hand, its output by inspect_page."""


def page(text: str) -> str:
    """The text, with what the verdicts say now."""
    return "\n".join([text.partition(FIRST)[0], *_verdicts()]).rstrip() + "\n"


def _verdicts() -> Iterator[str]:
    for kind, verdict in VERDICTS.items():
        yield from (f"## {kind}", "", f"{verdict.means} {verdict.do}", "")
        yield from ("```sh", verdict.next.format(run="RUN", changed=verdict.changed), "```", "")


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE)
