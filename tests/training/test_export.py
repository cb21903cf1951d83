"""An export's folder holds all or nothing, and takes the place of no other files."""

import os

import pytest

from common import UserError
from common.training.export import new_folder

FILES = {"README.txt", "model.onnx"}


def files(folder):
    return {path.name for path in folder.iterdir()}


def test_an_export_is_never_put_in_the_place_of_other_files(tmp_path):
    out = tmp_path / "mine"
    out.mkdir()
    for name in ("README.txt", "thesis.tex"):
        (out / name).write_text(name)
    with (
        pytest.raises(UserError, match=r"mine holds thesis.tex, which is no part of an export; name another folder"),
        new_folder(out, FILES, overwrite=True),
    ):
        pass
    with (
        pytest.raises(UserError, match="is a file; name a folder"),
        new_folder(out / "README.txt", FILES, overwrite=True),
    ):
        pass
    assert files(out) == {"README.txt", "thesis.tex"}
    assert files(tmp_path) == {"mine"}


def test_what_breaks_off_leaves_what_was_there(tmp_path):
    def write(text: str, *, fail: bool) -> None:
        with new_folder(tmp_path / "out", FILES, overwrite=True) as folder:
            (folder / "README.txt").write_text(text)
            if fail:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write("1", fail=True)
    assert files(tmp_path) == set()
    write("2", fail=False)
    with pytest.raises(KeyboardInterrupt):
        write("3", fail=True)
    assert (tmp_path / "out" / "README.txt").read_text() == "2"
    write("4", fail=False)
    assert (tmp_path / "out" / "README.txt").read_text() == "4"
    assert files(tmp_path) == {"out"}


def test_an_empty_folder_may_be_filled_and_a_full_disk_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    with new_folder(tmp_path / "out", FILES, overwrite=False) as folder:
        (folder / "README.txt").write_text("1")
    assert files(tmp_path / "out") == {"README.txt"}
    with (
        pytest.raises(UserError, match=r"cannot write .*other \(No space left on device\); make room"),
        new_folder(tmp_path / "other", FILES, overwrite=False),
    ):
        raise OSError(28, os.strerror(28))
    assert files(tmp_path) == {"out"}
