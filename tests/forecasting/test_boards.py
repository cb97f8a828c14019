# SPDX-License-Identifier: Apache-2.0
"""What `--for` names: boards, their software, versions alone; and what is said where a name is none."""

from __future__ import annotations

import pytest

from qdqtool.errors import QdqError
from qdqtool.forecasting.boards import device_of, find_place, known_boards
from qdqtool.forecasting.devices import known_devices, load_device
from qdqtool.trtversion import RELEASES, in_range


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("jp4.6.1", "any GPU, JetPack 4.6.1: TensorRT 8.2.1"),
        ("11.4", "any GPU: TensorRT 11.4.1"),
        ("8502", "any GPU: TensorRT 8.5.2"),
        ("xavier-nx", "Jetson Xavier NX, JetPack 5.1.6: TensorRT 8.5.2"),
        ("xavier-nx:jp4.6", "Jetson Xavier NX, JetPack 4.6: TensorRT 8.0.1"),
        ("NVIDIA Jetson Xavier NX:jp4.6.1", "Jetson Xavier NX, JetPack 4.6.1: TensorRT 8.2.1"),
        ("orin:jp6", "Jetson AGX Orin, JetPack 6.2.1: TensorRT 10.3.0"),
        ("orin:jp6.0", "Jetson AGX Orin, JetPack 6.0: TensorRT 8.6.2"),
        ("orin-nano:10.7", "Jetson Orin Nano, JetPack 6 with CUDA 12.8: TensorRT 10.7.0"),
        ("orin-nano:8.6", "Jetson Orin Nano, JetPack 6.0: TensorRT 8.6.2"),
        ("orin-nx-16gb:jp6.0", "Jetson Orin NX, JetPack 6.0: TensorRT 8.6.2"),
        ("Jetson Orin NX 8 GB:jp6.0", "Jetson Orin NX, JetPack 6.0: TensorRT 8.6.2"),
        ("drive-orin:drive6.0.9", "DRIVE AGX Orin, DRIVE OS 6.0.9: TensorRT 8.6.12"),
        ("rtx4090", "rtx4090, GeForce RTX 40 (Ada): TensorRT 11.5.0"),
        ("RTX 4090:8.6.1", "RTX 4090, GeForce RTX 40 (Ada): TensorRT 8.6.1"),
        ("rtx4090:rtx", "rtx4090, GeForce RTX 40 (Ada): TensorRT for RTX"),
    ],
)
def test_a_name_is_a_place(text: str, title: str) -> None:
    assert find_place(text).title == title


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("rtx4090", "rtx4090"),
        ("RTX 4090:rtx", "rtx4090"),
        ("NVIDIA Jetson Orin NX:jp6.0", "orin-nx"),
        ("orin-nx-16gb:jp6.0", "orin-nx"),
        ("agx-orin", "orin"),
        ("rtx3070", None),
        ("RTX PRO 6000", None),
        ("orin-nx:jp6.1@15w", "orin-nx@15W"),
        ("orin-nano 4GB", "orin-nano-4gb"),
        ("11.4", None),
        ("jp6.1", None),
    ],
)
def test_a_board_has_the_figures_of_its_own_name_or_none(text: str, device: str | None) -> None:
    """A recipe for an RTX 4090 once forecast an Orin NX."""
    found = device_of(text)
    assert (None if found is None else found.name) == device


def test_each_device_is_a_board() -> None:
    assert all(device_of(name) == load_device(name) and find_place(name).board for name in known_devices())


def test_a_board_without_a_version_takes_the_newest_and_lists_the_others() -> None:
    place = find_place("xavier-nx")
    assert place.notes[0].startswith(
        "Jetson Xavier NX: JetPack 5.1.6 was taken; others: JetPack 5.0.2 (TensorRT 8.4.1)"
    )
    assert "JetPack 4.6.6 (TensorRT 8.2.1)" in place.others


def test_a_version_that_was_named_leaves_no_choice() -> None:
    assert not find_place("xavier-nx:jp4.6.1").notes and not find_place("orin:10.3").notes
    assert find_place("rtx4090:trt11").version == find_place("rtx4090:11").version


def test_a_series_alone_is_its_newest_release_that_no_board_has() -> None:
    place = find_place("8.6")
    assert place.title == "any GPU: TensorRT 8.6.1" and "others: 8.6.0" in place.notes[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rtx9090", "is neither a board nor a version that qdqtool knows; did you mean rtx5090"),
        ("nano:jp5", "Jetson Nano does not run jp5; it runs JetPack 4.6.6 (TensorRT 8.2.1)"),
        ("xavier-nx:jp6.1", "Jetson Xavier NX does not run jp6.1; it runs JetPack 5.1.6 (TensorRT 8.5.2)"),
        ("xavier-nx:rtx", "TensorRT for RTX is not for Jetson Xavier NX"),
        ("toaster", "known are jetson-nano, tx2"),
        ("toaster:jp4", "is neither a board nor a version that qdqtool knows"),
        ("", "is neither a board nor a version that qdqtool knows"),
        ("99.1", "is not a TensorRT version"),
        ("orin:nonsense", "Jetson AGX Orin does not run nonsense; it runs JetPack 7.2.2"),
    ],
)
def test_what_is_no_place_is_refused(text: str, said: str) -> None:
    with pytest.raises(QdqError) as refused:
        find_place(text)
    assert said in str(refused.value)


def test_no_name_means_two_boards() -> None:
    names = [word for board in known_boards() for word in (board.name, *board.aliases)]
    assert len(names) == len(set(names))
    assert all(find_place(name).board is not None for name in names)


@pytest.mark.parametrize("board", known_boards(), ids=lambda board: board.name)
def test_a_board_runs_only_versions_of_its_range(board: object) -> None:
    from qdqtool.forecasting.boards import Board

    assert isinstance(board, Board)
    assert board.versions() and all(in_range(version, board.trt) for version, _ in board.versions())
    shipped = {name for release in RELEASES for name in release.platforms}
    for word in board.software:
        assert any(name.startswith(word) for name in shipped), f"no release of {word} is known"
