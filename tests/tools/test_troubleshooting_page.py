"""The page of troubleshooting has every verdict, as `why` says it."""

from troubleshooting_page import PAGE, page

from hpcrl.inspect.verdicts import VERDICTS

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_page_is_what_the_verdicts_say_now():
    assert page(TEXT) == TEXT, "write it again: make docs"


def test_each_verdict_has_its_meaning_what_to_do_and_the_next_command():
    for kind, verdict in VERDICTS.items():
        section = page("").split(f"\n## {kind}\n")[1].split("\n## ")[0]
        assert verdict.means in section and verdict.do in section
        assert verdict.next.format(run="RUN", changed=verdict.changed) in section
