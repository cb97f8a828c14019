# SPDX-License-Identifier: Apache-2.0
"""rules/gpu_layers.toml: sound, per version, and without a word in where pairs stand."""

from __future__ import annotations

import pytest

from qdqtool.engine.layer_guards import GUARDS
from qdqtool.engine.layer_units import CONVERTS, PARALLEL
from qdqtool.errors import QdqError
from qdqtool.match.constraints import constraint_named, operators
from qdqtool.rulebook import load_rules
from qdqtool.trtversion import TrtVersion


def names(*version: int) -> set[str]:
    return {rule.name for rule in load_rules("gpu_layers", TrtVersion(*version)).fusions}


def test_every_rule_says_why_and_its_guards_exist() -> None:
    for version in ((7, 1, 3), (8, 0, 1), (8, 5, 1), (10, 3, 0)):
        rules = load_rules("gpu_layers", TrtVersion(*version))
        for rule in rules.fusions:
            assert rule.why.endswith(".") and rule.see and rule.status in ("documented", "measured", "guess")
            for step in rule.steps:
                assert not step.constraint or (GUARDS.get(step.constraint) or constraint_named(step.constraint)).__doc__
                assert step.names


@pytest.mark.parametrize(
    ("rule", "inside", "outside"),
    [
        ("conv-act-pool", (8, 4, 0), (8, 2, 1)),
        (PARALLEL, (8, 2, 3), (8, 0, 1)),
        (CONVERTS, (10, 0, 1), (8, 6, 1)),
        ("conv-act-add", (8, 5, 1), (8, 4, 3)),
    ],
)
def test_a_rule_holds_for_its_versions(rule: str, inside: tuple[int, ...], outside: tuple[int, ...]) -> None:
    assert rule in names(*inside) and rule not in names(*outside)


def test_the_residual_rule_is_measured_for_two_versions_and_says_what_it_is_elsewhere() -> None:
    for version, status in (
        ((8, 2, 1), "guess"),
        ((8, 4, 0), "measured"),
        ((8, 5, 3), "measured"),
        ((8, 6, 1), "guess"),
        ((9, 3, 0), "guess"),
        ((10, 1, 0), "documented"),
    ):
        rule = load_rules("gpu_layers", TrtVersion(*version)).rule("conv")
        assert rule.status == status, version


def test_every_guard_is_named_by_a_rule_and_known_to_no_other() -> None:
    versions = [(8, 2, 1), (8, 5, 1), (10, 3, 0)]
    books = [load_rules("gpu_layers", TrtVersion(*version)) for version in versions]
    named = {step.constraint for rules in books for rule in rules.fusions for step in rule.steps}
    assert GUARDS.keys() <= named
    for name in GUARDS:
        with pytest.raises(QdqError, match="no such constraint"):
            constraint_named(name)


def test_the_placement_knows_none_of_it() -> None:
    assert not {"pointwise", "conv-act-pool", PARALLEL, CONVERTS} & set(load_rules("gpu").names)
    assert load_rules("gpu").rule("conv").see != load_rules("gpu_layers").rule("conv").see


def test_elementwise_operators_exist_in_onnx() -> None:
    import onnx.defs

    rules = load_rules("gpu_layers")
    for step in rules.rule(CONVERTS).steps:  # type: ignore[attr-defined]
        assert all(onnx.defs.has(op) for op in operators(step, rules))
