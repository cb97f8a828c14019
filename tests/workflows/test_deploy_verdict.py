# SPDX-License-Identifier: Apache-2.0
"""The first line of deploy: whether INT8 is worth it on the board."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from qdqtool import DeployOptions, deploy
from qdqtool.deploying.target import target_at
from qdqtool.forecasting.boards import find_place
from qdqtool.graph.io import open_model
from qdqtool.verbs.forecast import forecast_board
from qdqtool.workflows.deploy_verdict import verdict_line
from tests.graphs import SMALL_NET, model_of

WIDE = """net (float[1,256,64,64] x) => (float[1,256,64,64] y) <float[256,256,3,3] w, float[256,256,3,3] v>
{ c = Conv<pads=[1,1,1,1]>(x, w) r = Relu(c) y = Conv<pads=[1,1,1,1]>(r, v) }"""
SMALL = SMALL_NET.replace("float[N", "float[1")


def said(text: str, place: str, *, dla: bool = False) -> str:
    opened, target = open_model(model_of(text)), target_at(find_place(place), dla=dla)
    expected = forecast_board(opened, place) if target.kind != "dla" and target.int8 else None
    return verdict_line(target, expected, opened, place)


@pytest.mark.parametrize(
    ("text", "place", "wanted"),
    [
        (
            WIDE,
            "orin-nano",
            r"INT8 pays on Jetson Orin Nano, .* \(\d\.\d\dx FP16's speed, .* It moves \S+ MB where .*five",
        ),
        (
            SMALL,
            "rtx4090",
            r"INT8 will (not|hardly) pay on rtx4090, GeForce RTX 40.* \(0\.\d\dx .*kernel launches.*five",
        ),
        (SMALL, "jetson-nano", "No INT8 on Jetson Nano, .* no kernels"),
        (SMALL, "drive-orin", "Whether INT8 pays on .* has no figures of it"),
        (SMALL_NET, "11.4", "INT8 on any GPU, TensorRT 11.4.1?: it surely pays on none of .* --for BOARD"),
        (WIDE, "11.4", r"INT8 on any GPU, .* pays on \d+ of \d+ boards known, at best \S+ \d\.\d\dx, "),
    ],
)
def test_the_line_answers_first(text: str, place: str, wanted: str) -> None:
    assert re.match(wanted, said(text, place)), said(text, place)


def test_of_a_dla_no_time_is_known() -> None:
    assert "no times of DLAs are known" in said(SMALL, "xavier-nx:jp4.6.1", dla=True)
    assert "multiplies INT8 or only stores it" in said(SMALL, "orin:jp7.2.2", dla=True)


@pytest.mark.slow
def test_the_verdict_is_that_of_the_candidates(tmp_path: Path) -> None:
    """A transformer, whose attention no forecast without data has in INT8 or FP8."""
    np.save(tmp_path / "data.npy", np.random.default_rng(0).random((24, 3, 32, 32), np.float32))
    said = list[str]()
    model = Path(__file__).parents[2] / "models" / "shapes_vit.onnx"
    options = DeployOptions("rtx4090:11.4.1", effort="fast", progress=False, say=said.append)
    result = deploy(model, tmp_path / "data.npy", tmp_path / "out", options)
    times = {one.candidate.format: one.cost.microseconds for one in result.trials if one.cost and one.cost.microseconds}
    half = next(one.cost.microseconds for one in result.trials if one.candidate.name == "fp16" and one.cost)
    assert half is not None and f"({half / times['fp8']:.2f}x FP16's speed" in result.verdict
    assert "FP8" in said[0].split("with all of it")[1], "said before data decide"
    assert said[0] != result.verdict == (tmp_path / "out" / "README.md").read_text().splitlines()[1]
    assert result.outcome()[0].endswith(result.verdict)
