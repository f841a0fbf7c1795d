"""One word for one thing: names that were given up must not return, each in the rooms where it meant something else."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "hpcrl"

OLD_NAMES = {
    "": "Calendar Rhythm Courier Holdings Student StudentConfig RollCall look_after see_to Meeting meetings_in_vain "
    "Witness Parted AgentSeat WorkerSeat take_place goes_on WireMeta WireKey CallPlan RolePlan Execution JudgedNode",
    "agent": "Place Seat places",
    "algos": "fit Student",
    "data": "Order Bound balanced",
    "dataflow": "Source",
    "doctor": "Verdict Facts facts judge Wanted Answer",
    "engines": "Site Interval pieces",
    "inspect": "Source Wanted",
    "launch": "Site Facts facts afterwards endings hears Witness",
    "master": "Loss Failure Order give_order judge_nodes",
    "models": "Layout Entry",
    "nameresolve": "Meeting publish_meeting wait_meeting",
    "rewards": "Answer",
    "wire": "Exported Release Source Order",
    "workers": "Seat courier release",
}
"""Room ("" is the whole package) → names of classes, functions and attributes."""

OLD_FILES = (
    "logs.py workers/courier.py workers/roles.py workers/signals.py master/execution.py master/calendar.py "
    "master/roll_call.py master/fitness.py master/holdings.py launch/slurm/afterwards.py launch/slurm/endings.py "
    "launch/slurm/doctor.py launch/doctor launch/agent.py backends/inference.py models/families placement/fields.py "
    "placement/shapes.py dataflow/recipes.py doctor/talk.py doctor/judge.py"
)

OLD_PHRASES = re.compile(
    r"\b(go(es|ing)? on with|gone on with|runs? of before|mend(ed|s)?\b|in vain|see(s|n)? to it|looks? after)",
    re.IGNORECASE,
)
PAGES = (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md"))


def names(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr.lstrip("_"))
    return found


@pytest.mark.parametrize("room", OLD_NAMES)
def test_a_name_that_was_given_up_is_not_used(room: str) -> None:
    old = set(OLD_NAMES[room].split())
    used = {str(path): old & names(ast.parse(path.read_text())) for path in (PACKAGE / room).rglob("*.py")}
    assert {path: found for path, found in used.items() if found} == {}


def test_a_file_that_was_given_up_is_not_there() -> None:
    assert [name for name in OLD_FILES.split() if (PACKAGE / name).exists()] == []


@pytest.mark.parametrize("path", [*sorted(PACKAGE.rglob("*.py")), *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_messages_and_pages_say_it_in_the_usual_words(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert [found[0] for found in OLD_PHRASES.finditer(text)] == []
