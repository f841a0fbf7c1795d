"""What a search is given from outside, and what is said of a file that is something else."""

from pathlib import Path

import pytest

from hpcrl.errors import ConfigurationError
from hpcrl.placement.data_sheets import CPU_CORE
from hpcrl.placement.search_inputs import read_profile

WHOLE = CPU_CORE.to_json()


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_bytes(WHOLE)
    assert read_profile(tmp_path / "profile.json", "search.profile") == CPU_CORE


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is no profile: it is empty."),
        (b" \n", "is no profile: it is empty."),
        (b"\x89HDF\r\n\x1a\n\x00\x00", "is no profile: it is not text."),
        (b"\xff\xfe{", "is no profile: it is not text."),
        (b"algorithm: ppo\nactor: {path: model}\n", "is no profile: it is not JSON."),
        (b'{"time": 3}\n', "is no profile: it is JSON of something else (Object missing required field `source`)."),
        (WHOLE[:-40], "is no profile: it is not whole."),
        (WHOLE.replace(b":", b";", 1), "is no profile: it is damaged JSON ("),
        (None, "cannot be read: Is a directory."),
    ],
)
def test_a_file_that_is_no_profile_is_told_what_it_is(content: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "given"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError) as refused:
        read_profile(path, "search.profile")
    assert f"search.profile = {path} {said}" in str(refused.value)
    assert refused.value.advice == ("Give the JSON file that `hpcrl profile` writes: of a CONFIG, or --from RUN.",)
