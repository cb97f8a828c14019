# SPDX-License-Identifier: Apache-2.0
"""Labels: every kind from its spelling, and one line for every array that is not what it should be."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto

from qdqtool.errors import QdqError
from qdqtool.training.losses import terms
from qdqtool.training.losses.labels import label_feeds
from qdqtool.training.losses.loss_graph import append_losses
from qdqtool.training.losses.options import LossOptions, parse_label
from tests.training.losses.loss_graphs import bare, label_loss, labeled, shapes_of, term_value

RANDOM = np.random.default_rng(5)
X = RANDOM.standard_normal((2, 6, 4))
T = RANDOM.random((2, 6, 4))
HOT = (T > 0.6).astype(float)
CLASSES = RANDOM.integers(-1, 4, (2, 6))
MASK = np.array([[1, 0, 1, 0, 0, 1], [0, 0, 0, 1, 0, 0]], float)


@pytest.mark.parametrize(
    ("kind", "array", "formula"),
    [
        ("mse", T, terms.mean_square),
        ("l1", T, terms.mean_absolute),
        ("bce", HOT, terms.binary_cross_entropy),
        ("smooth-l1", T, terms.smooth_l1),
        ("smooth-l1=0.2", T, lambda s, t: terms.smooth_l1(s, t, 0.2)),
        ("ce", CLASSES, lambda s, y: terms.cross_entropy(s, y, 2)),
        ("ce=-1", CLASSES, lambda s, y: terms.cross_entropy(s, y, 2)),
        ("focal", CLASSES, lambda s, y: terms.softmax_focal(s, y, 2)),
        ("focal=1,0.4", CLASSES, lambda s, y: terms.softmax_focal(s, y, 2, 1, 0.4)),
        ("sigmoid-focal", HOT, terms.sigmoid_focal),
        ("dice", CLASSES, lambda s, y: terms.dice(s, y, 2)),
        ("sigmoid-dice=1", HOT, lambda s, y: terms.sigmoid_dice(s, y, 1)),
        ("sigmoid-focal=1,0.4", HOT, lambda s, y: terms.sigmoid_focal(s, y, 1, 0.4)),
    ],
)
def test_every_kind_has_its_formula(kind: str, array: npt.NDArray[Any], formula: Any) -> None:
    found = label_loss(f"x:{kind}:0.5:given", {"given": array}, x=X)
    assert found == pytest.approx(0.5 * term_value(formula, s=X, t=array), rel=1e-6)


def test_a_mask_is_an_array_of_its_own() -> None:
    found = label_loss("x:smooth-l1-mask=0.5", {"x_label": T, "x_label_mask": MASK}, x=X)
    wanted = term_value(lambda s, t, m: terms.smooth_l1(s, t, 0.5, m), s=X, t=T, m=MASK)
    assert found == pytest.approx(wanted, rel=1e-6)


def test_classes_on_another_axis() -> None:
    moved = X.transpose(0, 2, 1)
    assert label_loss("x:ce=1", {"x_label": CLASSES}, x=moved) == pytest.approx(
        label_loss("x:ce", {"x_label": CLASSES}, x=X), rel=1e-6
    )
    with pytest.raises(QdqError, match=r"--label x:ce: x of shape \[2, 6, 4\] has no axis 3"):
        labeled("x:ce=3", x=X)


def test_what_an_array_must_be_is_reported_beforehand() -> None:
    specs = labeled("x:ce:1:y", x=X).label_specs
    assert list(specs) == ["y"]
    assert (specs["y"].shape, specs["y"].elem_type, specs["y"].highest) == ((2, 6), TensorProto.INT64, 3)
    assert specs["y"].shape_and_type == "int64 [2, 6]"
    masked = labeled("x:smooth-l1-mask", x=X)
    assert masked.labels == ("x_label", "x_label_mask")
    assert masked.label_specs["x_label_mask"].shape == (2, 6)


@pytest.mark.parametrize(
    ("text", "arrays", "reported"),
    [
        ("x:ce", {}, "holds no array 'x_label': --label x:ce needs int64 [2, 6]"),
        ("x:ce", {"X_label": CLASSES}, "did you mean X_label"),
        ("x:ce", {"x_label": HOT}, "array 'x_label' of --label x:ce takes [2, 6], the data has [2, 6, 4]"),
        ("x:ce", {"x_label": CLASSES.T}, "takes [2, 6], the data has [6, 2]"),
        ("x:ce", {"x_label": CLASSES[:1]}, "takes [2, 6], the data has [1, 6]"),
        ("x:ce", {"x_label": CLASSES + 0.5}, "takes class numbers, the data has fractions"),
        ("x:ce", {"x_label": np.full((2, 6), 4)}, "takes values up to 3, the data has 4"),
        ("x:ce", {"x_label": np.full((2, 6), "cat")}, "takes int64, the data is <U3"),
        ("x:mse", {"x_label": np.full((2, 6, 4), np.nan)}, "array 'x_label' of --label x:mse holds NaN"),
        ("x:mse", {"x_label": np.full((2, 6, 4), -np.inf)}, "holds Inf"),
        ("x:ce", {"x_label": np.full((2, 6), np.nan)}, "holds NaN"),
        ("x:bce", {"x_label": np.full((2, 6, 4), 2)}, "takes values up to 1, the data has 2"),
        ("x:smooth-l1-mask", {"x_label": T, "x_label_mask": -MASK}, "takes values from 0, the data has -1"),
        ("x:smooth-l1-mask", {"x_label": T}, "holds no array 'x_label_mask'"),
    ],
)
def test_what_the_data_must_not_be(text: str, arrays: dict[str, npt.NDArray[Any]], reported: str) -> None:
    graph = labeled(text, x=X)
    with pytest.raises(QdqError) as caught:
        label_feeds(graph.label_specs, arrays, "train.npz")
    assert caught.value.where == "train.npz"
    assert reported in caught.value.reason
    assert "\n" not in caught.value.line()


def test_arrays_come_as_the_graph_takes_them() -> None:
    specs = labeled("x:ce", x=X).label_specs
    for kind in (np.int8, np.int32, np.float32, np.float64):
        fed = label_feeds(specs, {"x_label": CLASSES.astype(kind), "other": CLASSES}, "data")
        assert list(fed) == ["x_label"]
        assert fed["x_label"].dtype == np.int64
        assert np.array_equal(fed["x_label"], CLASSES)
    truth = label_feeds(labeled("x:bce", x=X).label_specs, {"x_label": HOT.astype(bool)}, "data")
    assert truth["x_label"].dtype == np.float32


def test_two_losses_may_read_one_array() -> None:
    proto = bare(a=X, b=X[..., :3])
    both = LossOptions(labels=(parse_label("a:ce:1:y"), parse_label("b:ce:1:y")))
    graph = append_losses(proto, (), both, None, shapes_of(proto))
    assert graph.labels == ("y",)
    assert graph.label_specs["y"].highest == 2  # the output with fewer classes decides
    clash = LossOptions(labels=(parse_label("a:ce:1:y"), parse_label("a:mse:1:y")))
    with pytest.raises(QdqError, match=r"needs the array 'y' as float32 \[2, 6, 4\], --label a:ce as int64 \[2, 6\]"):
        append_losses(proto, (), clash, None, shapes_of(proto))


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("z:ce", "the model has no tensor z"),
        ("x:ce:1:x_w", "the array 'x_w' has the name of a tensor of the model"),
        ("x:ce:1:x", "the array 'x' has the name of a tensor of the model"),
    ],
)
def test_names_that_do_not_do(text: str, reported: str) -> None:
    with pytest.raises(QdqError, match=reported):
        labeled(text, x=X)


def test_an_output_of_integers_takes_no_loss() -> None:
    proto = bare(x=X)
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    with pytest.raises(QdqError, match=r"--label x:mse: .*not float32"):
        append_losses(proto, (), LossOptions(labels=(parse_label("x:mse"),)), None, shapes_of(proto))


def test_a_scalar_per_sample_has_no_anchors() -> None:
    with pytest.raises(QdqError, match=r"x of shape \[2\] has no anchors"):
        labeled("x:smooth-l1-mask", x=np.zeros(2))
