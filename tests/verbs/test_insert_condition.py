# SPDX-License-Identifier: Apache-2.0
"""`insert --condition` is `condition`, then `insert`; plain `insert` says in one line what it would win."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool import ConditionOptions, InsertOptions, condition, insert
from qdqtool.cli.main import main
from qdqtool.conditioning.before_insert import ADVICE_SAMPLES, advice_for
from qdqtool.errors import QdqError
from qdqtool.graph.edit import edits_of, get_metadata
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from qdqtool.verbs.peel import peel
from qdqtool.verbs.peel_options import PeelOptions
from tests.collapsing_nets import residual_net
from tests.collapsing_nets import samples as collapsing_samples
from tests.conditioning.nets import SILU, samples, spread
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

NONE = ("--float-heads", "none")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(spread(SILU), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=samples())
    return tmp_path


def run(folder: Path, *words: str) -> int:
    return main(["insert", str(folder / "m.onnx"), "--data", str(folder / "d.npz"), *NONE, *words])


@pytest.mark.slow
def test_it_is_both_verbs_in_turn(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / "m.onnx").read_bytes()
    assert run(folder, "--condition", "auto", "-o", str(folder / "one.onnx")) == 0
    reported = capsys.readouterr().err
    assert "note: weights edited first" in reported
    assert "predicted at" in reported
    assert "--condition auto" not in reported
    data = ("--data", str(folder / "d.npz"), *NONE)
    assert main(["condition", str(folder / "m.onnx"), *data, "-o", str(folder / "c.onnx")]) == 0
    assert main(["insert", str(folder / "c.onnx"), *data, "-o", str(folder / "two.onnx")]) == 0
    assert (folder / "one.onnx").read_bytes() == (folder / "two.onnx").read_bytes()
    assert (folder / "m.onnx").read_bytes() == before


def test_edits_that_change_fp32_on_purpose_are_told_so(models: Path, tmp_path: Path) -> None:
    """They were told as "SQNR of the FP32 outputs after the edits: 14 dB or more", as if the model were ruined."""
    images = np.load(models / "digits_calib.npz")["images"][:4]
    options = InsertOptions(condition="correct", keep_float=0)
    data = [{"images": one[None]} for one in images]
    notes = insert(models / "digits_detector.onnx", data=data, options=options, output=tmp_path / "q.onnx").notes
    (told,) = [note for note in notes if note.startswith("weights edited first")]
    assert "; correct changes the FP32 outputs on purpose (SQNR " in told and told.endswith(
        " dB or more): judge INT8 alone"
    )


@pytest.mark.slow
def test_peel_gives_the_conditioned_model_back(folder: Path) -> None:
    from qdqtool.trtversion import parse

    plan = PlanOptions(float_heads="none")
    conditioned = condition(spread(SILU), str(folder / "d.npz"), ConditionOptions(plan=plan)).model
    placed = insert(spread(SILU), data=str(folder / "d.npz"), options=InsertOptions(plan=plan, condition="auto")).model
    assert get_metadata(placed, "condition")
    peeled = peel(placed, PeelOptions(parse("8602"))).model
    assert peeled.SerializeToString(deterministic=True) == conditioned.SerializeToString(deterministic=True)


def test_plain_insert_says_what_it_would_win(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--keep-float", "0", "-o", str(folder / "told.onnx")) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "conditioning is predicted" in line]
    assert len(lines) == 1
    assert f"first {ADVICE_SAMPLES} samples): add --condition auto" in lines[0]
    assert run(folder, "--keep-float", "0", "-q", "-o", str(folder / "quiet.onnx")) == 0
    assert "conditioning" not in capsys.readouterr().err
    assert (folder / "told.onnx").read_bytes() == (folder / "quiet.onnx").read_bytes()


@pytest.mark.slow
def test_where_int8_loses_little_nobody_looks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qdqtool.verbs import insert_measure

    asked: list[str] = []
    monkeypatch.setattr(insert_measure, "advice_for", lambda *_, **__: asked.append("advice") or [])
    assert run(folder, "-o", str(folder / "little.onnx")) == 0
    assert not asked
    assert run(folder, "--keep-float", "0", "-o", str(folder / "all.onnx")) == 0
    assert len(asked) == 1, "what INT8 loses is not known before"
    onnx.save(residual_net(4), folder / "m.onnx")
    np.savez(folder / "d.npz", x=collapsing_samples())
    assert run(folder, "-o", str(folder / "much.onnx")) == 0
    assert len(asked) == 2


def test_no_word_where_little_is_won_or_the_data_may_be_gone(folder: Path) -> None:
    from qdqtool.data.loader import inputs_of, open_loader

    plan = PlanOptions(float_heads="none")
    proto = spread(SILU)
    feed = open_loader(folder / "d.npz", inputs_of(proto.graph))
    assert advice_for(Model(proto), feed, plan)
    once = open_loader(({"x": row[None]} for row in samples()), inputs_of(proto.graph))
    assert advice_for(Model(proto), once, plan) == []
    done = condition(spread(SILU), str(folder / "d.npz"), ConditionOptions(plan=plan)).model
    assert advice_for(Model(done), feed, plan) == []


def test_refusals(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["insert", str(folder / "m.onnx"), "--condition", "auto"]) == 2
    assert re.search("--condition: .*--data", capsys.readouterr().err)
    assert run(folder, "--condition", "polish") == 2
    assert "--condition polish: " in capsys.readouterr().err
    assert run(folder, "--condition", "auto", "--format", "int4") == 2
    assert "INT4 weights are for Gemm and MatMul alone" in capsys.readouterr().err
    assert run(folder, "-o", str(folder / "q.onnx")) == 0
    with pytest.raises(QdqError, match=r"q.onnx: has Q/DQ, .*--condition"):
        insert(str(folder / "q.onnx"), data=str(folder / "d.npz"), options=InsertOptions(condition="auto"))
    assert sorted(path.name for path in folder.iterdir()) == ["d.npz", "m.onnx", "q.onnx"]


def test_points_only_gives_the_same_pairs(folder: Path) -> None:
    from qdqtool.metadata import stored_table

    for words, name in ((("--points-only",), "few.onnx"), ((), "all.onnx")):
        assert run(folder, "-q", *words, "-o", str(folder / name)) == 0
    few, everything = (onnx.load(folder / name) for name in ("few.onnx", "all.onnx"))
    scales = [
        {t.name: t.raw_data or t.float_data[:] for t in m.graph.initializer if "scale" in t.name}
        for m in (few, everything)
    ]
    assert scales[0] == scales[1]
    tables = [stored_table(model) for model in (few, everything)]
    assert tables[0] is not None and tables[1] is not None
    assert set(tables[0]) < set(tables[1])


CLIPPED = ("--method", "percentile=90")  # what is cut off shifts the means: something to correct


def corrected(path: Path) -> set[str]:
    reported = get_metadata(onnx.load(path), "condition")
    return {edit["site"] for edit in json.loads(reported)["edits"] if edit["step"] == "correct"} if reported else set()


def test_what_stays_in_float_is_not_corrected(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "k.onnx"
    assert run(folder, *CLIPPED, "--condition", "correct", "-o", str(out)) == 0
    everything = corrected(out)
    assert everything
    assert run(folder, *CLIPPED, "--condition", "correct", "--keep-float", "1", "-o", str(out)) == 0
    reported = capsys.readouterr().err
    (kept,) = [line.split()[2] for line in reported.splitlines() if "stays in float" in line]
    assert kept in everything
    assert corrected(out) == everything - {kept}
    assert "were corrected for INT8" not in reported


def test_biases_corrected_before_are_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--data", str(folder / "d.npz"), *NONE, *CLIPPED)
    assert main(["condition", str(folder / "m.onnx"), *words, "--steps", "correct", "-o", str(folder / "c.onnx")]) == 0
    insert = ["insert", str(folder / "c.onnx"), *words, "-o", str(folder / "q.onnx")]
    assert main(insert) == 0
    assert "were corrected for INT8" not in capsys.readouterr().err
    assert main([*insert, "--keep-float", "1"]) == 0
    assert "biases of 1 operators" in capsys.readouterr().err


def test_relu6_is_cut_in_the_source_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.conditioning.nets import RELU

    for opset, ir in ((9, 4), (13, 7)):
        source, data = tmp_path / f"m{opset}.onnx", ("--data", str(tmp_path / "d.npz"), *NONE)
        onnx.save(spread(RELU, opset, ir), source)
        np.savez(tmp_path / "d.npz", x=8 * samples())
        words = ("--condition", "relu6", "-o", str(tmp_path / "q.onnx"))
        assert main(["insert", str(source), *data, *words]) == 0
        assert "weights edited first (condition): 0 edits, 1 Relu limited to 6" in capsys.readouterr().err
        assert main(["condition", str(source), *data, "--steps", "relu6", "-o", str(tmp_path / "c.onnx")]) == 0
        assert re.search("  relu6: 1 Relu .* 6\nrelu6, clip and correct ", capsys.readouterr().out)
        back = ("-o", str(tmp_path / "back.onnx"), "--cache", str(tmp_path / "b.cache"))
        peeled = ["peel", str(tmp_path / "q.onnx"), "--target", "gpu", "--trt-version", "8602", *back]
        assert main([*peeled, "--source", str(source)]) == 0
        assert "1 Relu are limited" in capsys.readouterr().err
        assert (tmp_path / "back.onnx").read_bytes() == (tmp_path / "c.onnx").read_bytes()
        assert main([*peeled, "--source", str(tmp_path / "c.onnx")]) == 0
        assert "Relu are limited" not in capsys.readouterr().err
        assert (tmp_path / "back.onnx").read_bytes() == (tmp_path / "c.onnx").read_bytes()


def test_a_source_whose_relu_became_something_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.conditioning.nets import RELU

    np.savez(tmp_path / "d.npz", x=8 * samples())
    onnx.save(spread(RELU), tmp_path / "m.onnx")
    onnx.save(spread(RELU.replace("Relu", "Elu")), tmp_path / "other.onnx")
    words = ("--data", str(tmp_path / "d.npz"), *NONE, "--condition", "relu6")
    assert main(["insert", str(tmp_path / "m.onnx"), *words, "-o", str(tmp_path / "q.onnx")]) == 0
    capsys.readouterr()
    words = ("--target", "gpu", "--trt-version", "8602", "--source", str(tmp_path / "other.onnx"))
    assert main(["peel", str(tmp_path / "q.onnx"), *words]) == 2
    assert re.search("r1: .*Elu, .*Relu", capsys.readouterr().err)
    assert not (tmp_path / "q.peeled.onnx").exists()


SHARED = SILU.replace("float[8,1,3,3] w2", "float[8,1,3,3] w2, float[8,1,3,3] w3").replace(
    "y = Conv<pads=[1,1,1,1], group=8>(m1, w2)",
    "u = Conv<pads=[1,1,1,1], group=8>(m1, w2) t = Relu(u) v = Conv<pads=[1,1,1,1], group=8>(t, w2)"
    " k = Constant<value = float[8,1,3,3] {"
    + ",".join(["0.125"] * 72)
    + "}>() y = Conv<pads=[1,1,1,1], group=8>(v, k)",
)


VERSIONS = [(9, 3), (9, 4), (11, 6), (17, 8)]  # opset, IR version
STEPS = ["auto", "correct", "smooth", "relu6,auto"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "opset", "ir", "text"),
    [  # every pair of steps, version and network once
        pytest.param(
            steps,
            *version,
            (SILU, SHARED)[(row + column) % 2],
            id=f"{steps}-{version}-{row + column & 1}",
            marks=() if (column - row) % 4 < 2 else pytest.mark.slow,  # each step and each version with both networks
        )
        for row, steps in enumerate(STEPS)
        for column, version in enumerate(VERSIONS)
    ],
)
def test_peel_makes_of_the_source_what_condition_makes_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, opset: int, ir: int, steps: str
) -> None:
    """`insert m --condition`, `peel --source m`: the README's command lines."""
    onnx.save(spread(text, opset, ir), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=samples())
    data = ("--data", str(tmp_path / "d.npz"), *NONE, "--method", "percentile=90")
    assert main(["condition", str(tmp_path / "m.onnx"), *data, "--steps", steps, "-o", str(tmp_path / "c.onnx")]) == 0
    assert edits_of(onnx.load(tmp_path / "c.onnx"))
    words = ("--condition", steps, "--keep-float", "0", "-o", str(tmp_path / "q.onnx"))
    assert main(["insert", str(tmp_path / "m.onnx"), *data, *words]) == 0
    for source in ("m.onnx", "c.onnx"):
        words = ("--trt-version", "8602", "--source", str(tmp_path / source), "-o", str(tmp_path / "p.onnx"))
        assert main(["peel", str(tmp_path / "q.onnx"), "--target", "gpu", *words]) == 0, capsys.readouterr().err
        assert (tmp_path / "p.onnx").read_bytes() == (tmp_path / "c.onnx").read_bytes()


@pytest.mark.parametrize(
    ("steps", "what"), [("correct", "y: got a bias from condition, which"), ("smooth", "m1: got a Mul from")]
)
def test_a_source_without_what_was_conditioned_is_refused(tmp_path: Path, steps: str, what: str) -> None:
    from qdqtool.trtversion import TrtVersion

    plan, data = PlanOptions(float_heads="none"), [{"x": samples()}]
    asked = ConditionOptions(steps=(steps,), method="percentile=90", plan=plan)
    conditioned = condition(spread(SILU), data, asked).model
    placed = insert(conditioned, data=data, options=InsertOptions(plan=plan)).model
    other = {"correct": SILU.replace("y = Conv", "y = ConvTranspose"), "smooth": SILU.replace("m1", "m0")}[steps]
    with pytest.raises(QdqError, match=f"{what}"):
        peel(placed, PeelOptions(TrtVersion(8, 6, 1), source=spread(other)))
    again = peel(placed, PeelOptions(TrtVersion(8, 6, 1), source=conditioned)).model
    assert again.SerializeToString(deterministic=True) == conditioned.SerializeToString(deterministic=True)


FP8_NET = """g (float[N,32,6,6] x) => (float[N,32,6,6] y)
<float[32,32,3,3] w1, float[32] b1, float[32,32,1,1] w2, float[32] b2>
{ c1 = Conv<pads=[1,1,1,1]>(x, w1, b1)  r1 = Relu(c1)  y = Conv(r1, w2, b2) }"""


@pytest.mark.parametrize(("steps", "opset"), [("auto", 17), ("correct", 11)])
def test_weights_are_edited_for_fp8_below_its_opset(steps: str, opset: int) -> None:
    """Trials are placed in a copy that is lifted to the opset of the format; the scales are those of its own method."""
    plain = model_of(FP8_NET, opset)
    rows = np.random.default_rng(3).normal(size=(6, 32, 6, 6)).astype(np.float32)
    asked = InsertOptions(PlanOptions(format="fp8", float_heads="none"), condition=steps, keep_float=0)
    done = insert(plain, data={"x": rows}, options=asked)
    edits = edits_of(done.model)
    assert {edit["step"] for edit in edits} >= {"correct"} and done.model.opset_import[0].version == 19
    assert not any("predicted" in note for note in done.notes)  # by evenly spaced codes


@pytest.mark.parametrize(("kind", "step"), [("fp8", "clip"), ("nvfp4", "correct")])
def test_steps_that_a_format_has_no_use_for_are_refused(kind: str, step: str) -> None:
    asked = InsertOptions(PlanOptions(format=kind), condition=step)
    with pytest.raises(QdqError, match=rf"--condition {step}: .*(FP8|FP4)"):
        insert(model_of(FP8_NET), data={"x": np.zeros((1, 32, 6, 6), np.float32)}, options=asked)
