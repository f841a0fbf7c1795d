"""A call's round trip against bare ZeroMQ and a Ray actor, wall time: medians of many calls, the sides in turn."""

import sys
from pathlib import Path

from duel import Side, duel
from figures import Figure, median, spread
from peers import Peers

ROUNDS = 9
HOPS = {"hpcrl": 4, "ZeroMQ": 2, "ZeroMQ, CURVE": 2}
PYTHON = Path(sys.executable)


def calls(work: Path, peers: Peers) -> list[Figure]:
    with Side(PYTHON, "call_hpcrl.py", [], work / "size.log") as side:
        size = side.facts["bytes"]
    sides = {
        "hpcrl": (PYTHON, "call_hpcrl.py", []),
        "ZeroMQ": (PYTHON, "call_zmq.py", [str(size), "plain"]),
        "ZeroMQ, CURVE": (PYTHON, "call_zmq.py", [str(size), "curve"]),
    }
    if peers.python is not None:
        sides["Ray"] = (peers.python, "call_ray.py", [str(4 * size)])
    _, rounds = duel(sides, ROUNDS, work)
    trips = {name: [taken["us"] for taken in found] for name, found in rounds.items()}
    per_hop = {name: median(trips[name]) / hops for name, hops in HOPS.items()}
    return [
        Figure(
            "hop of a call (4: request, syn, ack, reply; CURVE) in hops of a bare ZeroMQ echo (no CURVE)",
            per_hop["hpcrl"] / per_hop["ZeroMQ"],
            "×",
            "≤ 2",
            f"{per_hop['hpcrl']:.1f} µs and {per_hop['ZeroMQ']:.1f} µs a hop of {size} bytes",
        ),
        Figure(
            "the same against an echo with CURVE",
            per_hop["hpcrl"] / per_hop["ZeroMQ, CURVE"],
            "×",
            "",
            f"{per_hop['ZeroMQ, CURVE']:.1f} µs a hop",
        ),
        _against_ray(trips, peers),
        Figure("a call's round trip", median(trips["hpcrl"]), "µs", "", spread(trips["hpcrl"], "µs")),
    ]


def _against_ray(trips: dict[str, list[float]], peers: Peers) -> Figure:
    what = "a call's round trip in calls of a Ray actor"
    if "Ray" not in trips:
        return Figure(what, None, "×", "≤ 0.5", peers.reason)
    theirs = median(trips["Ray"])
    return Figure(what, median(trips["hpcrl"]) / theirs, "×", "≤ 0.5", f"Ray {theirs:.0f} µs")
