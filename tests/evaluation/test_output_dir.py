# SPDX-License-Identifier: Apache-2.0
"""A folder of results: whole or not at all, never over an input, refused where it holds something."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdqtool.errors import QdqError
from qdqtool.evaluation.output_dir import check_folder, filling, picture_names


def test_files_arrive_together_at_the_end(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with filling(out) as place:
        (place / "a.png").write_bytes(b"a")
        assert not out.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (out / "a.png").read_bytes() == b"a"


@pytest.mark.parametrize("there", [False, True])
def test_a_new_folder_and_an_empty_one_are_filled_by_one_rename(
    tmp_path: Path, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between two renames would leave a part."""
    out, renamed = tmp_path / "out", []
    if there:
        out.mkdir()
    plain = Path.replace

    def replace(source: Path, target: Path) -> Path:
        renamed.append(Path(target).name)
        return plain(source, target)

    monkeypatch.setattr(Path, "replace", replace)
    with filling(out) as place:
        for name in ("a.png", "b.png", "detections.json"):
            (place / name).write_bytes(b"x")
    assert renamed == ["out"]
    assert sorted(path.name for path in out.iterdir()) == ["a.png", "b.png", "detections.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_empty_folder_of_other_rights_keeps_them(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir(0o700)
    with filling(out) as place:
        (place / "a.png").write_bytes(b"x")
    assert out.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in out.iterdir()] == ["a.png"]


def test_a_fault_leaves_nothing_behind_and_what_was_there_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "a.png").write_bytes(b"old")
    with pytest.raises(ValueError, match="fault"), filling(out) as place:
        (place / "a.png").write_bytes(b"new")
        raise ValueError("fault")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (out / "a.png").read_bytes() == b"old"


def test_a_file_that_would_replace_an_input_stops_all(tmp_path: Path) -> None:
    (tmp_path / "in.png").write_bytes(b"input")
    with (
        pytest.raises(QdqError, match=r"in.png: .*never overwritten"),
        filling(tmp_path, [tmp_path / "in.png"]) as place,
    ):
        (place / "aa.png").write_bytes(b"x")
        (place / "in.png").write_bytes(b"x")
    assert not (tmp_path / "aa.png").exists()
    assert (tmp_path / "in.png").read_bytes() == b"input"


def test_folders_that_will_do(tmp_path: Path) -> None:
    check_folder(tmp_path / "new", [tmp_path / "data"])
    (tmp_path / "empty").mkdir()
    check_folder(tmp_path / "empty", [])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    check_folder(tmp_path / "full", [tmp_path / "model.onnx"], force=True)


def test_folders_that_will_not(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "x.jpg").touch()
    (tmp_path / "file").touch()
    for folder, reported in (
        (tmp_path / "no" / "out", "its folder does not exist"),
        (tmp_path / "file", "is a file"),
        (data, "holds the input"),
    ):
        with pytest.raises(QdqError, match=reported):
            check_folder(folder, [data])
    with pytest.raises(QdqError, match=r"holds the input .*data"):
        check_folder(data, [data], force=True)
    with pytest.raises(QdqError, match=r"is not empty; .* --force"):
        check_folder(tmp_path, [Path("elsewhere")])
    with pytest.raises(QdqError, match="holds the input"):
        check_folder(data, [data / "x.jpg"])


def test_each_picture_has_a_name_of_its_own() -> None:
    files = [Path(name) for name in ("a/x.jpg", "a/x.png", "a/y.jpg", "b/Y.bmp", "b/z.jpg", "c/z.jpg")]
    assert picture_names(files) == ["x.jpg.png", "x.png.png", "y.jpg.png", "Y.bmp.png", "b_z.jpg.png", "c_z.jpg.png"]
    assert picture_names([Path("p/a/z.jpg"), Path("q/a/z.jpg")]) == ["a_z.jpg_0.png", "a_z.jpg_1.png"]
    assert picture_names([Path("only.jpg")]) == ["only.png"]


def test_an_error_of_a_file_names_the_place_that_it_is_for(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(QdqError, match=r"cannot be written") as caught, filling(out) as place:
        raise QdqError(place / "m.onnx", "cannot be written (no space)", "give another")
    assert (caught.value.where, caught.value.todo) == (str(out / "m.onnx"), "give another")
    with pytest.raises(QdqError) as caught, filling(out):
        raise QdqError("elsewhere.npz", "cannot be read")
    assert caught.value.where == "elsewhere.npz"
