# SPDX-License-Identifier: Apache-2.0
"""Twelve graphs with foreign or unknown operators through nine verbs: exit codes, the line that tells, nothing lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.foreign_nets import NETS, VERBS, Answer, ask, lost

pytest.importorskip("onnxruntime")

# Exit codes in the order of VERBS; "-" where `insert` gives nothing to peel.
CODES = {
    "FusedConv": "0 0 0 0 0 1 0 0 0",
    "Affine": "2 2 0 0 - 1 2 2 0",
    "Crop": "2 2 0 0 - 1 2 2 0",
    "Quant": "0 2 2 2 2 1 2 2 2",
    "ImageScaler": "2 2 0 0 - 0 2 2 0",
    "EfficientNMS_TRT at the outputs": "0 0 0 0 2 0 0 0 0",
    "BatchedNMSDynamic_TRT at the outputs": "0 0 0 0 2 0 0 0 0",
    "BatchedNMSDynamic_TRT and a further output": "0 0 0 0 2 0 0 0 0",
    "EfficientNMS_TRT in the middle": "0 0 0 2 2 0 0 0 0",
    "EfficientNMS_TRT before a convolution": "0 2 2 2 2 0 2 2 2",
    "an unknown domain": "0 2 2 2 2 0 2 2 2",
    "nothing but unknown operators": "2 2 0 0 - 0 2 2 2",
}
# What the lines that tell must hold: net -> verb -> words.
TOLD = {
    "FusedConv": {
        "insert": "cannot parse com.microsoft::FusedConv (1 node)",
        "lint": "com.microsoft::FusedConv (1 node)",
    },
    "Affine": {"insert": "Affine p cannot be converted from opset 9", "lint": "Affine (1 node)"},
    "Crop": {"condition": "Crop p cannot be converted from opset 9", "ptq --target gpu": "cannot parse Crop (1 node)"},
    "Quant": {"lint": "onnx.brevitas::Quant (2 nodes)", "insert --data": "c1: Conv comes after onnx.brevitas::Quant"},
    "ImageScaler": {"insert": "ImageScaler p cannot be converted", "lint": "nothing found"},
    "EfficientNMS_TRT at the outputs": {"peel --target dla": "nb (after EfficientNMS_TRT", "lint": "nothing found"},
    "EfficientNMS_TRT in the middle": {
        "ptq --target dla": "nb (after EfficientNMS_TRT), up (after EfficientNMS_TRT), z"
    },
    "an unknown domain": {"insert": "plugin of your own for custom::Sharpen", "lint": "custom::Sharpen (1 node)"},
    "nothing but unknown operators": {"insert": "has nothing to quantize", "insert --data": "has nothing to quantize"},
}


@pytest.fixture(scope="module", params=NETS)
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Answer]]:
    return request.param, ask(request.param, tmp_path_factory.mktemp("net"))


def test_exit_codes(answers: tuple[str, dict[str, Answer]]) -> None:
    name, said = answers
    assert " ".join(str(said[verb].code) if verb in said else "-" for verb in VERBS) == CODES[name]


def test_a_refusal_is_one_line_and_a_success_tells_what_is_left(answers: tuple[str, dict[str, Answer]]) -> None:
    name, said = answers
    for verb, answer in said.items():
        if answer.code == 2:
            assert answer.err.count("\n") == 1 and answer.err.startswith("qdqtool: error: "), verb
            assert answer.cache is None
        if verb.endswith("dla") and answer.code == 0:
            assert lost(name, answer) == []
    for verb, words in TOLD.get(name, {}).items():
        assert words in said[verb].line, (verb, said[verb].line)


def test_losses_are_told_by_what_the_plugin_reads(tmp_path: Path) -> None:
    said = ask("BatchedNMSDynamic_TRT at the outputs", tmp_path)
    assert "box" in said["condition"].out or "wide" in said["condition"].out
    assert "in INT8: 0.00" in said["sensitivity"].out
