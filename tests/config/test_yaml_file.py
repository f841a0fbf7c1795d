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


@pytest.mark.parametrize("text", ["{[1]: 2}\n", "a: !!python/object:os.system x\n", "a: \x00\n"])
def test_what_is_not_plain_data_is_refused(tmp_path, text):
    with pytest.raises(ConfigurationError):
        read(tmp_path, text)
