"""What one process finds out about a filesystem, on a good one and on ones that fail."""

import errno
import os
from pathlib import Path

import pytest

from hpcrl.doctor.measure_disk import filesystem_of, measure_disk

MOUNTS = """/dev/sda1 / ext4 rw 0 0
tmpfs /tmp tmpfs rw 0 0
server:/export /shared nfs4 rw,vers=4.2 0 0
server:/more /shared/my\\040data lustre rw 0 0
"""


def test_a_good_filesystem_passes_and_is_left_as_it_was(tmp_path):
    disk = measure_disk(tmp_path)
    assert disk.failed == {}
    assert disk.link_exclusive and disk.create_exclusive and disk.mkdir_exclusive
    assert disk.rename_replaces and disk.modes_kept
    assert len(disk.fsync_s) == 12 and min(disk.fsync_s) > 0
    assert disk.clock_ahead_s == 0.0
    assert disk.path == str(tmp_path.parent)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("call", "name"),
    [("link", "link"), ("mkdir", "mkdir"), ("rename", "rename"), ("chmod", "chmod"), ("fsync", "fsync")],
)
def test_what_the_system_refuses_is_written_down(monkeypatch, tmp_path, call, name):
    real = getattr(os, call)

    def refuse(*words, **more):
        # The folder to work in must still be made.
        if call == "mkdir" and Path(words[0]).name.startswith("disk-"):
            return real(*words, **more)
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, call, refuse)
    disk = measure_disk(tmp_path)
    assert disk.failed[name] == "Operation not permitted"
    assert list(tmp_path.iterdir()) == []


def test_a_filesystem_that_ignores_modes_is_found_out(monkeypatch, tmp_path):
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, flags, mode=0o777, **more: real(path, flags, 0o644, **more))
    monkeypatch.setattr(os, "chmod", lambda *words: None)
    before = os.umask(0o022)
    try:
        disk = measure_disk(tmp_path)
    finally:
        os.umask(before)
    assert not disk.modes_kept and disk.failed == {}


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/home/me", "ext4"), ("/tmp/x", "tmpfs"), ("/shared/runs", "nfs4"), ("/shared/my data/x", "lustre")],
)
def test_the_filesystem_is_that_of_the_deepest_mount(path, kind):
    assert filesystem_of(Path(path), MOUNTS) == kind


def test_of_two_mounts_in_one_place_the_later_one_is_seen():
    assert filesystem_of(Path("/a/b"), "x / ext4 rw 0 0\ny /a nfs rw 0 0\nz /a beegfs rw 0 0\n") == "beegfs"
    assert filesystem_of(Path("/a/b"), "") == "unknown"
