"""What docs/formulas/defaults.json says of verl's and TRL's defaults is what their installed packages say."""

import json

from peer_defaults import DEFAULTS, compared
from support.peers import ask


def test_the_peers_defaults_are_what_the_page_says(tmp_path):
    rows = [row for name in json.loads(DEFAULTS.read_text(encoding="utf-8")) for row in compared(name)]
    said = {peer: [default for row in rows if (default := getattr(row, peer))] for peer in ("verl", "trl")}
    places = {peer: [default.where for default in defaults] for peer, defaults in said.items()}
    found = ask([(f"{peer}_defaults", {"places": where}) for peer, where in places.items()], tmp_path)
    for peer, values in zip(said, found, strict=True):
        pairs = zip(said[peer], values, strict=True)
        assert not [(default.where, default.value, value) for default, value in pairs if default.value != value]
