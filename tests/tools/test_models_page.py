"""The page of models says what the declarations say."""

from models_page import PAGE, page

from hpcrl.families.family import FAMILIES
from hpcrl.plugins import names


def test_the_page_is_what_the_declarations_say_now():
    assert PAGE.read_text(encoding="utf-8") == page(), "write it again: make docs"


def test_every_family_says_what_it_reads_and_refuses():
    text = page()
    for name in names(FAMILIES):
        section = text.split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert "\nReads `" in section and "\nRefuses other values than `" in section
    assert "`sliding_window`" in text.split("\n## mistral\n")[1].split("\n## ")[0]
    assert "`attn_logit_softcapping` = null" in text
