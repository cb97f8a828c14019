# SPDX-License-Identifier: Apache-2.0
"""The record of element types: written, read, refused."""

from __future__ import annotations

import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.edit import get_metadata, set_metadata
from qdqtool.precision.assignment import PrecisionRecord, TypeAssignment, store_precision, stored_precision
from tests.graphs import SMALL_NET, model_of
from tests.precision.typed import BF16, FP16


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (PrecisionRecord(TypeAssignment(FP16)), '{"rest":"fp16","float32":[]}'),
        (
            PrecisionRecord(TypeAssignment(BF16, frozenset("ba"), half_io=True), {"w_bf16": "w"}),
            '{"rest":"bf16","half_io":true,"float32":["a","b"],"twins":{"w_bf16":"w"}}',
        ),
        (PrecisionRecord(TypeAssignment(FP16, for_dla=True)), '{"rest":"fp16","dla":true,"float32":[]}'),
    ],
)
def test_there_and_back(record: PrecisionRecord, text: str) -> None:
    model = model_of(SMALL_NET)
    assert stored_precision(model) is None
    store_precision(model, record)
    assert get_metadata(model, "precision") == text
    assert stored_precision(model) == record


def test_reasons_are_kept_by_what_they_say_and_are_no_part_of_the_choice() -> None:
    reasons = {"b": "too large", "a": "too large", "c": "saves Casts"}
    record = PrecisionRecord(TypeAssignment(FP16, frozenset("abc"), reasons=reasons))
    model = model_of(SMALL_NET)
    store_precision(model, record)
    text = get_metadata(model, "precision")
    assert text is not None and '"why":{"saves Casts":["c"],"too large":["a","b"]}' in text
    found = stored_precision(model)
    assert found is not None and found.assignment.reasons == reasons
    assert found.assignment == TypeAssignment(FP16, frozenset("abc"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"rest":"fp32","float32":[]}',
        '{"rest":"fp16"}',
        '{"rest":"fp16","float32":"ab"}',
        '{"rest":"fp16","float32":[1]}',
        '{"rest":"fp16","float32":[],"twins":{"a":1}}',
        '{"rest":"fp16","float32":[],"why":["a"]}',
        '{"rest":"fp16","float32":[],"why":{"a":1}}',
        '{"rest":"fp16","float32":[],"why":{"a":[1]}}',
        '{"rest":"fp16","float32":[],"twins":[]}' + "[" * 5,
    ],
)
def test_another_text_is_refused(text: str) -> None:
    model = model_of(SMALL_NET)
    set_metadata(model, "precision", text)
    with pytest.raises(QdqError, match=r"metadata qdqtool\.precision: "):
        stored_precision(model)
