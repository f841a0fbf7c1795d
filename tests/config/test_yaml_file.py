"""YAML as a user means it."""

import pytest

from hpcrl.config.yaml_file import read_yaml
from hpcrl.errors import ConfigurationError


def read(tmp_path, text):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    return read_yaml(path)


@pytest.mark.parametrize("text", ["1e-6", "1E+3", "-2.5e4", ".5e1", "3.e2", "0.1", "+1e0"])
def test_numbers_with_an_exponent_are_numbers(tmp_path, text):
    assert read(tmp_path, f"a: {text}\n") == {"a": float(text)}


@pytest.mark.parametrize("text", ["1e", "e5", "1e-6x", "'1e-6'", "v1e5"])
def test_what_only_looks_like_a_number_is_a_text(tmp_path, text):
    assert read(tmp_path, f"a: {text}\n") == {"a": text.strip("'")}


def test_a_model_may_be_described_once_and_used_by_many_roles(tmp_path):
    text = "small: &small {path: m, dtype: bf16}\nbig: &big\n  <<: *small\n  dtype: fp32\nactor: {<<: *big, path: n}\n"
    assert read(tmp_path, text)["actor"] == {"path": "n", "dtype": "fp32"}


@pytest.mark.parametrize("text", ["a: 1\na: 2\n", "b:\n  a: 1\n  c: 2\n  a: 3\n"])
def test_a_key_that_stands_twice_is_refused_with_its_line(tmp_path, text):
    with pytest.raises(ConfigurationError, match=r'line [24]: the key "a" stands here twice'):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a:\n\tb: 1\n", "line 2: a tab stands there, but YAML takes spaces only."),
        ("a:\n  b: 1\n    c: 2\n", "line 3: this line is not indented as those before it, or has a colon too many."),
        ("a:\n  b: {}\n   c: 2\n", "line 3: this line is not indented as those before it, or the name of its section"),
        ("", "is empty. Begin it with `algorithm: ppo`"),
        ("# nothing\n", "is empty."),
    ],
)
def test_a_newcomers_mistake_is_told_in_words(tmp_path, text, said):
    with pytest.raises(ConfigurationError) as refused:
        read(tmp_path, text)
    assert said in str(refused.value)


@pytest.mark.parametrize("text", ["{[1]: 2}\n", "a: !!python/object:os.system x\n", "a: \x00\n"])
def test_what_is_not_plain_data_is_refused(tmp_path, text):
    with pytest.raises(ConfigurationError):
        read(tmp_path, text)


def test_a_value_that_is_no_mapping_is_shown_by_its_beginning(tmp_path):
    with pytest.raises(ConfigurationError, match=r"holds .*1, 1, 1") as refused:
        read(tmp_path, f"[{'1, ' * 50_000}]\n")
    assert len(str(refused.value)) < 1000


LAUGHS = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 30))
MERGES = "".join(f"b{i}: &b{i} {{<<: [{', '.join([f'*b{i - 1}'] * 10)}]}}\n" for i in range(1, 30))
CHAIN = "".join(f"c{i}: &c{i} [*c{i - 1}]\n" for i in range(1, 5000))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a0: &a0 1\n" + LAUGHS, r"line 6: with its aliases written out this is 111,111 values; 100,000 are allowed"),
        ("b0: &b0 {x: 1}\n" + MERGES, "line 6: with its aliases written out this is 333,331 values"),
        ("a: &a\n  - *a\n", "line 1: an alias stands within what it names"),
        ("c0: &c0 1\n" + CHAIN, "line 101: values are nested more than 100 deep"),
        ("a: " + "[" * 100_000, "line 1: values are nested more than 100 deep"),
        ("a: " + "{b: " * 50_000, "line 1: values are nested more than 100 deep"),
        ("\n".join(f"{' ' * i}a:" for i in range(700)), "line 100: values are nested more than 100 deep"),
        ("a: " + "x" * 300_000, "has more than 256 KiB"),
    ],
    ids=["aliases", "merges", "cycle", "chain", "lists", "mappings", "indented", "long"],
)
def test_what_would_unfold_without_bound_is_refused_before_it_does(tmp_path, text, what):
    """At the first line that is too much: what follows is not even read."""
    with pytest.raises(ConfigurationError, match=what):
        read(tmp_path, text)
