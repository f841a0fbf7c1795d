"""The page of settings says what the dataclasses say."""

from settings_page import PAGE, page

from hpcrl.config.fields import settings
from hpcrl.plugins import names
from hpcrl.recipes.algorithm import ALGORITHMS, algorithm_of


def test_the_page_is_what_the_dataclasses_say_now():
    assert PAGE.read_text(encoding="utf-8") == page(), "write it again: make docs"


def test_every_setting_of_every_algorithm_is_there_with_bound_default_and_class():
    text = page()
    for name in names(ALGORITHMS):
        for setting in settings(algorithm_of(name).experiment):
            assert f"| `{setting.key}` | " in text
    assert "| `generation.top_p` | a number, above 0 and at most 1 | 1.0 | " in text
    assert "| `data.batch_size` | a whole number or null, at least 1 | null | identity | " in text
