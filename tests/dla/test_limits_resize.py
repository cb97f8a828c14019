# SPDX-License-Identifier: Apache-2.0

"""The ways in which the DLA resizes, by version; and deconvolutions of old versions, with which it did so before."""

from __future__ import annotations

import re

import pytest

from qdqtool.dla.assignment import dla_findings
from qdqtool.trtversion import TrtVersion
from tests.dla.test_limits import DECONV, V8_5, V10_3, conv, of_x, rules_of
from tests.graphs import view_of


def resized(scales: str, mode: str = "nearest", version: TrtVersion = V10_3, **given: str) -> set[str]:
    reported = "".join(f', {name} = "{value}"' for name, value in given.items())
    text = f'a = Constant<value_floats = [{scales}]>() z = Resize<mode = "{mode}"{reported}>(x, , a)'
    return rules_of(of_x(text, z="1,4,N,M"), version, "xavier" if version < V8_5 else "orin") - {"dla-static"}


def test_resize_takes_whole_scales_of_height_and_width() -> None:
    assert not resized("1.0,1.0,2.0,2.0") & {"dla-resize-scales", "dla-resize-nearest"}
    assert "dla-resize-nearest" in resized("1.0,1.0,1.5,2.0") and "dla-resize-nearest" in resized("1.0,1.0,33.0,1.0")
    assert "dla-resize-scales" in resized("1.0,2.0,2.0,2.0")
    assert "dla-resize-linear" not in resized("1.0,1.0,4.0,4.0", "linear")
    assert "dla-resize-linear" in resized("1.0,1.0,5.0,4.0", "linear")
    assert "dla-resize-way" in resized("1.0,1.0,2.0,2.0", "cubic")
    sizes = of_x("a = Constant<value_ints = [1,4,16,16]>() z = Resize(x, , , a)", z="1,4,16,16")
    assert "dla-resize-scales" in rules_of(sizes)


def test_a_scale_is_told_as_it_is_with_a_pooling_to_use_instead() -> None:
    text = of_x('a = Constant<value_floats = [1.0,1.0,0.5,0.5]>() z = Resize<mode = "linear">(x, , a)', z="1,4,4,4")
    (verdict,) = dla_findings(view_of(text), V8_5).fallbacks
    (reason,) = verdict.reasons
    assert "(0.5; " in reason.text and reason.text.endswith(" 1 to 4)")
    assert "whole factor; " in reason.instead and "pooling" in reason.instead


def test_the_advice_to_resize_otherwise_says_that_it_changes_the_values() -> None:
    text = of_x('a = Constant<value_floats = [1.0,1.0,2.0,2.0]>() z = Resize<mode = "linear">(x, , a)', z="1,4,16,16")
    (verdict,) = dla_findings(view_of(text), TrtVersion(8, 2, 1)).fallbacks
    assert re.match("nearest .*asymmetric .*floor", verdict.reasons[0].instead)


# NvInfer.h 8.4.1, IResizeLayer: the five that run, and neighbors of each. ONNX' defaults are half_pixel and
# round_prefer_floor.
@pytest.mark.parametrize(
    ("mode", "places", "rounding", "runs", "ran_in_8_2"),
    [
        ("nearest", "asymmetric", "floor", True, True),
        ("nearest", "half_pixel", "round_prefer_floor", True, False),
        ("nearest", "half_pixel", "round_prefer_ceil", True, False),
        ("linear", "half_pixel", "", True, False),
        ("linear", "pytorch_half_pixel", "", True, False),
        ("nearest", "asymmetric", "", False, False),
        ("nearest", "asymmetric", "ceil", False, False),
        ("nearest", "half_pixel", "floor", False, False),
        ("nearest", "pytorch_half_pixel", "round_prefer_floor", False, False),
        ("nearest", "align_corners", "floor", False, False),
        ("linear", "asymmetric", "", False, False),
        ("linear", "align_corners", "", False, False),
    ],
)
def test_resize_runs_in_five_ways(mode: str, places: str, rounding: str, runs: bool, ran_in_8_2: bool) -> None:
    given = {"coordinate_transformation_mode": places} | ({"nearest_mode": rounding} if rounding else {})
    assert (not resized("1.0,1.0,2.0,2.0", mode, **given)) is runs
    assert ("dla-resize-way-8-2" not in resized("1.0,1.0,2.0,2.0", mode, TrtVersion(8, 2, 1), **given)) is ran_in_8_2


@pytest.mark.parametrize(("stride", "found"), [(2, set()), (1, {"dla-deconv-stride-8-2"})])
def test_before_8_4_a_deconvolution_steps_by_its_kernel(stride: int, found: set[str]) -> None:
    text = conv("8,8,2,2", **DECONV | {"out": "1,8,N,M"}, strides=f"[{stride},{stride}]")
    assert rules_of(text, TrtVersion(8, 2, 1), "xavier") - {"dla-static"} == found
    assert rules_of(text) - {"dla-static"} == set()


def test_old_resizes_have_one_way() -> None:
    text = 'a = Constant<value = float[4] {1.0, 1.0, 2.0, 2.0}>() z = Upsample<mode = "%s">(x, a)'
    assert rules_of(of_x(text % "nearest", z="1,4,16,16"), opset=9) == set()
    assert rules_of(of_x(text % "linear", z="1,4,16,16"), opset=9) == {"dla-resize-way"}
    assert rules_of(of_x((text % "nearest").replace("Upsample", "Resize"), z="1,4,16,16"), opset=10) == set()
