# SPDX-License-Identifier: Apache-2.0
"""Cells and priors: numbers and places worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.evaluation.decode.efficientdet import anchors
from qdqtool.evaluation.decode.grids import all_cells, cell_count, cells, map_size, strides_of
from qdqtool.evaluation.decode.priors import PRIOR_SETS, around, make_priors, priors_for


def test_cells_row_by_row() -> None:
    assert cells(3, 2).tolist() == [[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [2, 1]]
    grid, stride = all_cells((32, 16), (8, 16))
    assert grid.tolist()[-2:] == [[0, 0], [1, 0]]
    assert stride.ravel().tolist() == [8] * 8 + [16] * 2


def test_a_part_of_a_cell_is_a_cell() -> None:
    assert map_size((100, 96), 32) == (4, 3)
    assert cell_count((416, 416), (8, 16, 32)) == 3549


@pytest.mark.parametrize(
    ("count", "each", "strides"),
    [(3549, 1, (8, 16, 32)), (10647, 3, (8, 16, 32)), (3598, 1, (8, 16, 32, 64)), (3550, 1, ())],
)
def test_strides_by_their_number_of_rows(count: int, each: int, strides: tuple[int, ...]) -> None:
    assert strides_of(count, (416, 416), each) == strides


@pytest.mark.parametrize(
    ("size", "count", "name"),
    [
        ((320, 240), 4420, "UltraFace"),
        ((640, 480), 17640, "UltraFace"),
        ((640, 640), 16800, "RetinaFace"),
        ((300, 300), 8732, "SSD300 of VGG"),
        ((300, 300), 3000, "SSD300 of MobileNet"),
    ],
)
def test_sets_of_priors_have_the_numbers_of_the_published_models(size: tuple[int, int], count: int, name: str) -> None:
    found = priors_for(count, size)
    assert found is not None
    assert found[0] == name
    assert found[1].shape == (count, 4)
    assert found[1].min() >= 0
    assert found[1].max() <= 1


def test_priors_stand_at_the_middle_of_their_cells() -> None:
    priors = make_priors(PRIOR_SETS["UltraFace"], (320, 240))
    np.testing.assert_allclose(priors[0], [4 / 320, 4 / 240, 10 / 320, 10 / 240])
    np.testing.assert_allclose(priors[1], [4 / 320, 4 / 240, 16 / 320, 16 / 240])
    np.testing.assert_allclose(priors[3 * 40], [4 / 320, 12 / 240, 10 / 320, 10 / 240])
    np.testing.assert_allclose(priors[-1], [1.0 - 32 / 320, min(1, 224 / 240), 256 / 320, 1.0])
    retina = make_priors(PRIOR_SETS["RetinaFace"], (640, 640)) * 640
    assert sorted(set(retina[:, 2])) == [16, 32, 64, 128, 256, 512]


def test_ssds_priors_of_a_cell() -> None:
    sides = around(60, 111, (2, 3))
    np.testing.assert_allclose(sides[1], [np.sqrt(60 * 111)] * 2)
    np.testing.assert_allclose(sides[2], [60 * np.sqrt(2), 60 / np.sqrt(2)])
    np.testing.assert_allclose(sides[5], [60 / np.sqrt(3), 60 * np.sqrt(3)])
    np.testing.assert_allclose([wide * high for wide, high in (sides[0], *sides[2:])], 3600)


def test_no_set_has_that_number() -> None:
    assert priors_for(8732, (512, 512)) is None


def test_efficientdets_anchors() -> None:
    centers, sides = anchors((512, 512))
    assert len(centers) == len(sides) == 49104
    np.testing.assert_allclose(centers[:9], 4.0)
    np.testing.assert_allclose(sides[[0, 1, 2, 3]], [[32, 32], [44.8, 22.4], [22.4, 44.8], [32 * 2 ** (1 / 3)] * 2])
    np.testing.assert_allclose(
        (centers[-1], sides[-1]), [[448, 448], [512 * 2 ** (2 / 3) * 0.7, 512 * 2 ** (2 / 3) * 1.4]]
    )
