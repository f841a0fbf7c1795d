"""Names and files that declare, and what is said of those that do not."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import pytest

from hpcrl.errors import ConfigurationError, ExitCode, HpcrlError
from hpcrl.plugins import Room, find, load, names

ROOM = Room("songs", "SONG", Fraction)


@dataclass(frozen=True)
class Choir:
    """What a file declares that has functions."""

    sing: Callable[[str], object]
    voice: type[str] = str


@pytest.fixture
def songs(tmp_path, monkeypatch):
    """A package of songs, and some other files."""
    folder = tmp_path / "songs"
    folder.mkdir()
    song = "from fractions import Fraction\n"
    for name, text in {
        "__init__": "",
        "morning": f"{song}SONG = Fraction(1)\n",
        "evening": f"{song}SONG: Fraction = Fraction(2)\n",
        "notes": "SONGS = 2\n",
        "number": "\nSONG = 3\n",
        "broken": "SONG = 1\n\nraise RuntimeError('no voice')\n",
    }.items():
        (folder / f"{name}.py").write_text(text)
    (tmp_path / "mine.py").write_text(f"{song}\nMINE = Fraction(3)\nWRONG = 1.5\n")
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "torn.py").write_text("MINE = (\n\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def refusal(name):
    with pytest.raises(ConfigurationError) as refused:
        find(ROOM, name, "choir.song")
    [text] = refused.value.problems
    return text


def test_the_names_are_the_files_that_declare_and_none_is_imported(songs):
    assert names(ROOM) == ("broken", "evening", "morning", "number")
    assert "songs.morning" not in sys.modules


def test_a_name_is_a_file_of_the_room(songs):
    assert find(ROOM, "morning", "choir.song") == Fraction(1)
    assert find(ROOM, "evening", "choir.song") == Fraction(2)


def test_a_file_of_the_users_declares_under_any_name_and_is_executed_once(songs):
    found = find(ROOM, f"{songs}/mine.py:MINE", "choir.song")
    assert found == Fraction(3)
    assert find(ROOM, f"{songs}/mine.py:MINE", "choir.song") is found
    assert load(f"{songs}/mine.py:MINE") is found
    assert "mine" not in sys.modules


def test_code_is_loaded_by_the_name_of_its_module():
    assert load("hpcrl.plugins:find") is find


def test_an_unknown_name_gets_the_nearest_and_the_list(songs):
    assert refusal("mornin") == (
        "choir.song = mornin must be one of broken, evening, morning, number, or file.py:NAME. "
        "Set choir.song, probably to morning."
    )
    assert refusal("notes").endswith("Set choir.song.")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine.py:MIN", "mine.py has no MIN. The nearest is MINE, line 3. Fix the file or set choir.song."),
        ("mine.py:WRONG", "mine.py, line 4: WRONG is a float; a Fraction is needed. Fix the file or set choir.song."),
        ("torn.py:MINE", "torn.py, line 1: SyntaxError: '(' was never closed (torn.py, line 1). Fix the file"),
        ("leaves.py:MINE", "leaves.py, line 2: SystemExit: 3. Fix the file or set choir.song."),
        ("gone.py:MINE", "gone.py does not exist. Set choir.song."),
    ],
)
def test_a_file_of_the_users_that_declares_nothing_is_refused_by_setting_file_and_line(songs, name, message):
    text = refusal(f"{songs}/{name}")
    assert text.startswith(f"choir.song = {songs}/{name}: {songs}/{message}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("number", "number.py, line 2: SONG is an int; a Fraction is needed. Fix the file or set choir.song."),
        ("broken", "broken.py, line 3: RuntimeError: no voice. Fix the file or set choir.song."),
    ],
)
def test_a_file_of_the_room_is_refused_alike(songs, name, message):
    assert refusal(name) == f"choir.song = {name}: {songs}/songs/{message}"


def test_a_file_that_raised_may_be_fixed_and_found(songs):
    refusal(f"{songs}/torn.py:MINE")
    (songs / "torn.py").write_text("from fractions import Fraction\nMINE = Fraction(4)\n")
    assert find(ROOM, f"{songs}/torn.py:MINE", "choir.song") == Fraction(4)


CHOIR = """
import sys
from hpcrl.errors import DataError
from tests.test_plugins import Choir

def sing(how):
    if how == "exit":
        sys.exit("enough")
    if how == "refuse":
        raise DataError("no score")
    return [len(how)][len(how)]

def hum(how):
    yield "m"
    yield sing(how)

LOUD, SOFT, FINE = Choir(sing), Choir(hum), Choir(len)
"""


@pytest.mark.parametrize(
    ("name", "how", "message"),
    [
        ("LOUD", "exit", "line 8: SystemExit: enough."),
        ("LOUD", "index", "line 11: IndexError: list index out of range."),
        ("SOFT", "index", "line 11: IndexError: list index out of range."),
        ("LOUD", "refuse", None),
    ],
)
def test_what_a_users_function_raises_names_setting_file_and_line(tmp_path, name, how, message):
    (tmp_path / "choir.py").write_text(CHOIR)
    given = f"choir.song = {tmp_path}/choir.py:{name}"
    choir = find(Room("songs", "SONG", Choir), f"{tmp_path}/choir.py:{name}", "choir.song")
    with pytest.raises(HpcrlError) as refused:
        choir.sing(how)
    if message is None:
        assert str(refused.value) == "no score"
    else:
        assert str(refused.value) == f"{given}: {tmp_path}/choir.py, {message} Fix the file or set choir.song."
        assert refused.value.exit_code == ExitCode.CONFIGURATION


def test_what_a_users_function_gives_is_what_it_gave(tmp_path):
    (tmp_path / "choir.py").write_text(CHOIR)
    choir = find(Room("songs", "SONG", Choir), f"{tmp_path}/choir.py:FINE", "choir.song")
    assert (choir.sing("four"), choir.voice) == (4, str)
