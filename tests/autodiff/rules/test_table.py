# SPDX-License-Identifier: Apache-2.0
"""What the table calls an operator, what it lists, and that what is decomposed has a body."""

from __future__ import annotations

import onnx
import pytest

from qdqtool.autodiff.rules.fusion import SILU
from qdqtool.autodiff.rules.table import DECOMPOSED, RULES, key_of, operators


@pytest.mark.parametrize(
    ("op", "domain", "key"),
    [
        ("Conv", "", "Conv"),
        ("Conv", "ai.onnx", "Conv"),
        ("Conv", "com.microsoft", "com.microsoft::Conv"),
        ("PairAxis0Learned", "qdqtool.pairs", "qdqtool.pairs::Pair"),
        ("SiLU", "qdqtool.joint", SILU),
    ],
)
def test_keys(op: str, domain: str, key: str) -> None:
    assert key_of(onnx.helper.make_node(op, [], [], domain=domain)) == key


def test_operators_are_sorted_and_reported() -> None:
    reported = operators(RULES)
    assert reported == sorted(reported)
    assert {"Conv", "Mish", "Resize", "qdqtool.pairs::Pair"} <= set(reported)
    assert not {"Round", SILU} & set(reported)


@pytest.mark.parametrize("op", sorted(DECOMPOSED))
def test_what_is_decomposed_has_a_body_and_no_rule(op: str) -> None:
    schema = onnx.defs.get_schema(op, 21)
    assert schema.has_function or schema.has_context_dependent_function
    assert op not in RULES
