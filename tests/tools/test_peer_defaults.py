"""Our defaults are verl's where it has one, else TRL's, else a note says why not."""

import json

import pytest
from algorithms_page import ours
from peer_defaults import DEFAULTS, compared

from hpcrl.plugins import names
from hpcrl.recipes.algorithm import ALGORITHMS, algorithm_of
from hpcrl.recipes.policy import PolicyExperiment

SECTIONS = tuple(json.loads(DEFAULTS.read_text(encoding="utf-8")))
POLICIES = tuple(name for name in names(ALGORITHMS) if issubclass(algorithm_of(name).experiment, PolicyExperiment))
PLACES = [(section, section) for section in SECTIONS if section != "policy"]


@pytest.mark.parametrize(("section", "name"), [*PLACES, *(("policy", name) for name in POLICIES)])
def test_defaults_are_the_peers_or_a_note_says_why_not(section, name):
    known, rows = ours(section, algorithm_of(name)), list(compared(section))
    assert rows
    for row in rows:
        assert row.wanted is not None and row.setting in known
        assert row.why or known[row.setting] == row.wanted.meaning, row.setting
