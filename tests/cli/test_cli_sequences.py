# SPDX-License-Identifier: Apache-2.0
"""A network with sequences between its layers and at its outputs through the verbs that run it."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.cli.command import run, write_net
from tests.graphs import model_of

pytest.importorskip("onnxruntime")

NET = """net (float[N,4,8,8] x) => (float[N,3] y)
<float[8,4,3,3] w1, float[8] b1, float[4,4,3,3] w2, float[4,3] fc, int64 four = {4}, int64 i0 = {0}, int64 i1 = {1}>
{
 c1 = Conv<pads=[1,1,1,1]>(x, w1, b1)
 r1 = Relu(c1)
 s1 = SplitToSequence<axis=1>(r1, four)
 a = SequenceAt(s1, i0)
 b = SequenceAt(s1, i1)
 c2 = Conv<pads=[1,1,1,1]>(a, w2)
 s2 = SequenceConstruct(b, c2)
 m = SequenceAt(s2, i1)
 g = GlobalAveragePool(m)
 f = Flatten(g)
 y = Gemm(f, fc)
}"""
VERBS = {
    "prune": "prune m.onnx --ratio 0.4 -o out.onnx",
    "prune by data": "prune m.onnx --ratio 0.4 --importance taylor --data d.npz -o out.onnx",
    "insert": "insert m.onnx --data d.npz --keep-float 0 -o out.onnx",
    "compare": "compare m.onnx m.onnx --data d.npz",
    "report": "report m.onnx --model m.onnx --data d.npz --no-parser -o out.html",
    "evaluate": "evaluate m.onnx --baseline m.onnx --data d.npz",
    "infer": "infer m.onnx --data d.npz -o out",
    "deploy": "deploy m.onnx --data d.npz --for 8.6.1 --effort fast -o out",
}


@pytest.mark.parametrize("outputs", ["y", "y s", "s y", "s"])
@pytest.mark.parametrize("words", VERBS.values(), ids=VERBS)
def test_no_verb_takes_a_sequence_for_a_tensor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, outputs: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    model = model_of(NET, 13)
    floats = onnx.helper.make_sequence_type_proto(onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None))
    known = {"y": model.graph.output[0], "s": onnx.helper.make_value_info("s1", floats)}
    kept = [onnx.ValueInfoProto.FromString(known[name].SerializeToString()) for name in outputs.split()]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    write_net(tmp_path).write_bytes(model.SerializeToString())
    said = run(capsys, *words.split())
    expected = (0,) if outputs != "s" and words.startswith(("insert", "compare", "report")) else (0, 2)
    assert said.code in expected, said.err
