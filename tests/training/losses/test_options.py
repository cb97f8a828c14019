# SPDX-License-Identifier: Apache-2.0
"""What `--label` and `--distill` may look like, and what each mistake says."""

from __future__ import annotations

import pytest

from qdqtool.errors import QdqError
from qdqtool.training.losses.options import LossOptions, parse_distill, parse_label


@pytest.mark.parametrize(
    ("text", "output", "kind", "weight", "array", "numbers"),
    [
        ("logits:ce", "logits", "ce", 1.0, "logits_label", {}),
        ("logits:ce=1,0.1", "logits", "ce", 1.0, "logits_label", {"axis": 1, "smoothing": 0.1}),
        ("logits:ce=smoothing=0.1:2", "logits", "ce", 2.0, "logits_label", {"smoothing": 0.1}),
        ("logits:ce=1:0.5", "logits", "ce", 0.5, "logits_label", {"axis": 1}),
        ("box:smooth-l1-mask=0.11:5:gt", "box", "smooth-l1-mask", 5.0, "gt", {"beta": 0.11}),
        ("net/out:0:mse", "net/out:0", "mse", 1.0, "net/out:0_label", {}),
        ("net/out:0:focal=1.5,0.3:2:a:b", "net/out:0", "focal", 2.0, "a:b", {"gamma": 1.5, "alpha": 0.3}),
        ("x:l1:1e-2", "x", "l1", 0.01, "x_label", {}),
        ("x:sigmoid-focal=0", "x", "sigmoid-focal", 1.0, "x_label", {"gamma": 0.0}),
    ],
)
def test_labels(text: str, output: str, kind: str, weight: float, array: str, numbers: dict[str, float]) -> None:
    label = parse_label(text)
    assert (label.output, label.kind, label.weight, label.array) == (output, kind, weight, array)
    assert label.numbers == numbers
    assert label.mask_array == f"{array}_mask"


@pytest.mark.parametrize(
    ("text", "pair", "kind", "weight", "numbers"),
    [
        ("a:b:L2", "a:b", "L2", 1.0, {}),
        ("a:0:b:0:KL=4:0.5", "a:0:b:0", "KL", 0.5, {"temperature": 4.0}),
        ("a:b:KL=4,1", "a:b", "KL", 1.0, {"temperature": 4.0, "axis": 1}),
        ("a:b:COS=-1:3", "a:b", "COS", 3.0, {"axis": -1}),
        ("a:b:L1:3", "a:b", "L1", 3.0, {}),
    ],
)
def test_bindings(text: str, pair: str, kind: str, weight: float, numbers: dict[str, float]) -> None:
    binding = parse_distill(text)
    assert (binding.pair, binding.kind, binding.weight, binding.numbers) == (pair, kind, weight, numbers)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("logits", "names none of the kinds ce, focal"),
        ("ce", "names none of the kinds"),
        ("logits:smoth-l1", "did you mean smooth-l1"),
        ("logits:ce:heavy", "weight 'heavy' is not a number"),
        ("logits:ce:nan", "weight 'nan' is not a number"),
        ("logits:ce:0", "weight 0 is not above 0"),
        ("logits:ce:-1", "weight -1 is not above 0"),
        ("logits:mse=2", "mse takes no numbers, not '2'"),
        ("logits:ce=1,0.1,2", "ce takes axis, smoothing after its =, not '1,0.1,2'"),
        ("logits:ce=smothing=0.1", "ce takes no smothing, did you mean smoothing"),
        ("logits:bce=1", "smoothing 1 is not from 0 to below 1"),
        ("logits:ce=1.5", "axis 1.5 is not a whole number"),
        ("logits:focal=0.5", "gamma 0.5 is not 0, or 1 and more"),
        ("logits:focal=2,1", "alpha 1 is not between 0 and 1"),
        ("logits:smooth-l1=0", "beta 0 is not above 0"),
        ("logits:smooth-l1=", "beta '' is not a number"),
    ],
)
def test_what_is_no_label(text: str, reported: str) -> None:
    with pytest.raises(QdqError) as caught:
        parse_label(text)
    assert caught.value.where == f"--label {text}"
    assert reported in caught.value.reason


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("a:b", "names none of the kinds L1, L2, KL, COS"),
        ("a:b:kl", "did you mean KL"),
        ("a:KL", "is not two tensors, a kind and a weight"),
        ("a:b:L2:1:2", "is not two tensors, a kind and a weight"),
        ("a:b:L2:0", "weight 0 is not above 0"),
        ("a:b:KL=0", "temperature 0 is not above 0"),
        ("a:b:L2=3", "L2 takes no numbers"),
    ],
)
def test_what_is_no_binding(text: str, reported: str) -> None:
    with pytest.raises(QdqError) as caught:
        parse_distill(text)
    assert reported in caught.value.reason


def test_the_teacher_is_matched_where_nothing_else_is_asked_for() -> None:
    label = parse_label("y:ce")
    assert LossOptions().label_free_weight == 1
    assert LossOptions().needs_teacher
    assert LossOptions(labels=(label,)).label_free_weight == 0
    assert not LossOptions(labels=(label,)).needs_teacher
    assert LossOptions(labels=(label,), distill_weight=0.5).label_free_weight == 0.5
    assert LossOptions(labels=(label,), distill_weight=0.5).needs_teacher
    assert LossOptions(script="s.py").label_free_weight == 0
    assert LossOptions(distill=(parse_distill("a:b:L1"),)).needs_teacher
    assert LossOptions(distill=(parse_distill("a:b:L1"),)).label_free_weight == 0
