# SPDX-License-Identifier: Apache-2.0
"""Q058 tells of every attention with pairs that NVIDIA's compiler built as something else than one INT8 kernel."""

from __future__ import annotations

import pytest

from qdqtool import LintOptions, lint
from qdqtool.trtversion import TrtVersion
from tests.rtx.attention_graphs import ATTENTIONS

# No form of the rules: the weights of the Softmax are the right operand. Several kernels without pairs, too: one head.
UNKNOWN = {"attention/transposed-weights", "attention/one-head"}
WHOLE = {name for name, case in ATTENTIONS.items() if case.kernels and not case.why}


def findings(name: str, version: TrtVersion | None = None) -> list[tuple[str, str, str]]:
    options = LintOptions(target="gpu" if version else "rtx", trt_version=version, select=("Q058",))
    return [(one.where, one.message, one.severity) for one in lint(ATTENTIONS[name].model(), options).findings]


@pytest.mark.parametrize("name", sorted(ATTENTIONS.keys() - UNKNOWN))
def test_a_warning_where_an_attention_with_pairs_was_not_built_as_one_kernel(name: str) -> None:
    found = findings(name)
    assert len(found) == (name not in WHOLE and name != "attention/none")
    assert all(where == "f" and severity == "warning" for where, _, severity in found)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("no-queries", "no pair on its queries: it is not one INT8 kernel"),
        ("no-softmax", "no pair on the output of its Softmax"),
        ("no-output", "no pair on its output"),
        ("head-24", "heads of 24 values"),
        ("tokens-513", "513 tokens"),
        ("guarded", "masked everywhere"),
        ("operator", "no place for a pair"),
    ],
)
def test_what_is_missing_is_named(name: str, word: str) -> None:
    ((_, text, _),) = findings(f"attention/{name}")
    assert text.startswith("an attention ") and word in text


def test_a_note_for_versions_before_11_and_nothing_before_the_rule() -> None:
    assert [severity for *_, severity in findings("attention/no-values", TrtVersion(10, 3, 0))] == ["note"]
    assert findings("attention/no-values", TrtVersion(8, 5, 1)) == []
