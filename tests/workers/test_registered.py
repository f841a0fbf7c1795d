"""What a registered method may give and must leave alone."""

import json
from typing import Any

import numpy as np
import pytest

from hpcrl.data.form import BYTES, Form
from hpcrl.data.samples import SequenceSample
from hpcrl.errors import UserCodeError
from hpcrl.recipes.registered import Dispatch, register, registered_calls
from hpcrl.workers.host import Work
from hpcrl.workers.registered import perform

FORMS = {"sums": Form("float64"), "role_value": BYTES, "role_item": BYTES}


class Role:
    def __init__(self) -> None:
        self.seen = 0
        self.w = np.zeros(2)
        self.makes: Any = None

    def state(self) -> dict[str, Any]:
        return {"seen": self.seen}

    @register(Dispatch.DP_COMPUTE_PROTO, inputs=("x",), outputs={"sums": "float32"})
    def rows(self, rows: Any, act: str = "") -> Any:
        self._act(act)
        return {"sums": [row.sum(keepdims=True) for row in rows["x"]]} if self.makes is None else self.makes

    @register(Dispatch.ONE_TO_ALL)
    def value(self, act: str = "") -> Any:
        self._act(act)
        return self.makes

    @register(Dispatch.ALL_TO_ALL)
    def item(self, one: int, other: int) -> Any:
        return [one, other]

    def _act(self, act: str) -> None:
        self.seen += act == "remember"
        self.w = self.w + (act == "learn")


CALLS = {call.method: call for call in registered_calls("role", Role)}


def work(method: str, *arguments: Any, ids: tuple[str, ...] = ("a", "b")) -> Work:
    rows = {"x": [np.arange(3, dtype=np.float32), np.ones(2, np.float32)]} if method == "rows" else {}
    return Work(3, CALLS[method].name, 1, SequenceSample.from_rows(ids, rows), arguments=arguments)


def values(role: Role, method: str, *arguments: Any, ids: tuple[str, ...]) -> list[str]:
    return [*perform(role, work(method, *arguments, ids=ids), CALLS[method], FORMS).values]


def test_rows_are_made_in_the_declared_type_and_exact_where_the_model_is() -> None:
    made = perform(Role(), work("rows"), CALLS["rows"], FORMS).sample
    assert made is not None
    assert made.ids == ("a", "b") and [row.tolist() for row in made.rows("sums")] == [[3.0], [2.0]]
    assert made.data["sums"].dtype == np.float64


def test_items_go_by_the_number_of_their_worker() -> None:
    assert values(Role(), "item", [4, 5, 6], [7, 8, 9], ids=("2",)) == ["[6,9]"]


@pytest.mark.parametrize("makes", [float("nan"), (1, 2), {3: 4}, np.zeros(2), object()])
def test_a_value_is_what_json_gives_back(makes: Any) -> None:
    role = Role()
    role.makes = makes
    with pytest.raises(UserCodeError, match=r"role\.value returned .* which JSON would not give back as it is"):
        values(role, "value", ids=("0",))
    role.makes = {"a": [1, 2.5, None, "x"]}
    assert values(role, "value", ids=("0",)) == ['{"a":[1,2.5,null,"x"]}']


def test_a_value_is_of_at_most_64_kib() -> None:
    role = Role()
    role.makes = "x" * (2**16 - 2)
    assert values(role, "value", ids=("0",)) == [f'"{role.makes}"']
    role.makes += "x"
    with pytest.raises(
        UserCodeError, match=r"role\.value returned 65537 bytes as JSON, and 65536 are the most"
    ) as error:
        values(role, "value", ids=("0",))
    assert "rows go by a mode of samples" in error.value.advice[0]


def test_rows_that_do_not_fit_are_told() -> None:
    role = Role()
    role.makes = {"sums": [np.zeros(1)]}
    with pytest.raises(
        UserCodeError, match=r"role\.rows, in step 3, gave 1 rows of sums; it has to give a dict of lists"
    ):
        perform(role, work("rows"), CALLS["rows"], FORMS)


@pytest.mark.parametrize("method", ["rows", "value"])
def test_a_method_that_changes_nothing_leaves_its_role_as_it_is(method: str) -> None:
    role, ids = Role(), ("a", "b") if method == "rows" else ("0",)
    perform(role, work(method, "", ids=ids), CALLS[method], FORMS, role.w.tobytes)
    with pytest.raises(UserCodeError, match=rf"role\.{method} has changed what state\(\) returns") as error:
        perform(role, work(method, "remember", ids=ids), CALLS[method], FORMS)
    assert error.value.advice == ("Leave them as they are, or register the method with changes=True.",)
    with pytest.raises(UserCodeError, match=rf"role\.{method} has changed parameters of role"):
        perform(role, work(method, "learn", ids=ids), CALLS[method], FORMS, lambda: role.w.tobytes())


@pytest.mark.parametrize("method", ["rows", "value"])
def test_what_a_method_raises_in_its_own_lines_is_the_users_and_nothing_else(tmp_path: Any, method: str) -> None:
    def raising(line: str) -> Role:
        names: dict[str, Any] = {"np": np, "json": json}
        exec(compile(f"def act(self, act):\n    {line}", str(tmp_path / "role.py"), "exec"), names)
        role: Role = type("Own", (Role,), {"_act": names["act"]})()
        return role

    ids = ("a", "b") if method == "rows" else ("0",)
    with pytest.raises(
        UserCodeError, match=rf"role\.{method} failed in step 3\.\n[\s\S]*role\.py[\s\S]*ZeroDivisionError"
    ):
        perform(raising("1 / 0"), work(method, ids=ids), CALLS[method], FORMS)
    with pytest.raises(json.JSONDecodeError):
        perform(raising("json.loads('')"), work(method, ids=ids), CALLS[method], FORMS)


def test_a_method_that_an_attribute_hides_is_told_and_has_another_name() -> None:
    class Hiding(Role):
        rows: Any

        def __init__(self) -> None:
            super().__init__()
            self.rows = 3

    with pytest.raises(
        UserCodeError, match=r"role\.rows is a registered method of Hiding, which has set an attribute"
    ) as error:
        perform(Hiding(), work("rows"), CALLS["rows"], FORMS)
    assert error.value.advice == ("Give the method another name.",)
    assert values(Hiding(), "item", [4], [7], ids=("0",)) == ["[4,7]"]
