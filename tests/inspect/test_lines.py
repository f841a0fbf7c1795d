from pathlib import Path

from hpcrl.inspect.lines import Tail, parse


def test_a_torn_last_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    tail = Tail(path)
    assert tail.rows() == []
    path.write_text('{"a": 1}\n{"a"')
    assert tail.rows() == [{"a": 1}]
    assert tail.rows() == []
    with open(path, "a") as file:
        file.write(': 2}\n{"a": 3}\n')
    assert tail.rows() == [{"a": 2}, {"a": 3}]


def test_what_is_no_json_object_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'[1]\nnonsense\n\xff\xfe\n{"a": "\xe2\x80\xa8"}\n{"a": NaN}\n')
    rows = Tail(path).rows()
    assert rows[0] == {"a": "\u2028"}
    assert len(rows) == 2


def test_only_objects_are_rows() -> None:
    assert parse('{"a": 1}') == {"a": 1}
    assert parse("1") is None
    assert parse("{") is None
