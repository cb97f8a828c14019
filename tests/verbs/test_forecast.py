# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""The verb `forecast`: rows, verdicts and reasons on networks whose answer is known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool import insert
from qdqtool.deploying.board_ratios import fast_devices, pays_nowhere
from qdqtool.deploying.candidates import DeployCandidate, Form
from qdqtool.deploying.choice import CandidateTrial, DeployCost, choose
from qdqtool.errors import QdqError
from qdqtool.evaluation.bootstrap import Interval
from qdqtool.evaluation.metrics import Figure
from qdqtool.forecasting.devices import known_devices
from qdqtool.formats import INT8
from qdqtool.match.plan import PlanOptions
from qdqtool.trtversion import parse
from qdqtool.verbs.forecast import BoardForecast, forecast
from qdqtool.verbs.forecast_options import ForecastOptions
from qdqtool.verbs.insert_options import InsertOptions
from tests.graphs import model_of

_SIDE = 80
FORMS: tuple[Form, Form] = ("fp16", "qdq")


def convolutions(batch: str = "1", side: str = str(_SIDE)) -> onnx.ModelProto:
    """Six convolutions of 256 channels on 80 x 80 values."""
    weights = ", ".join(f"float[256,256,3,3] w{place}" for place in range(6))
    nodes = " ".join(
        f"c{place} = Conv<pads=[1,1,1,1]>({f'r{place - 1}' if place else 'x'}, w{place}) r{place} = Relu(c{place})"
        for place in range(6)
    )
    shape = f"float[{batch},256,{side},{side}]"
    return model_of(f"g ({shape} x) => ({shape} y) <{weights}> {{ {nodes} y = Identity(r5) }}")


def long_attention(tokens: int = 2048) -> onnx.ModelProto:
    """One attention of four heads over so many tokens that nothing else counts."""
    weights = "float[128,128] wq, float[128,128] wk, float[128,128] wv, float[128,128] wo, int64[4] to = {0,0,4,32}, int64[3] back = {0,0,128}, float s = {0.2}"
    linears = "q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv) qr = Reshape(q, to) kr = Reshape(k, to) vr = Reshape(v, to) qt = Transpose<perm=[0,2,1,3]>(qr) kt = Transpose<perm=[0,2,3,1]>(kr) vt = Transpose<perm=[0,2,1,3]>(vr)"
    core = "c = MatMul(qt, kt) d = Mul(c, s) e = Softmax(d) f = MatMul(e, vt) ft = Transpose<perm=[0,2,1,3]>(f) fr = Reshape(ft, back) y = MatMul(fr, wo)"
    return model_of(f"g (float[1,{tokens},128] x) => (float[1,{tokens},128] y) <{weights}> {{ {linears} {core} }}")


def board(model: onnx.ModelProto, place: str = "orin-nx:jp6.1", **options: object) -> BoardForecast:
    (found,) = forecast(model, ForecastOptions((place,), **options)).boards  # type: ignore[arg-type]
    return found


def test_int8_pays_for_large_convolutions() -> None:
    found = board(convolutions(), formats=("fp16", "int8"))
    half, int8 = found.rows
    assert (half.format, half.verdict, int8.format, int8.verdict) == ("fp16", "", "int8", "pays")
    assert found.use == "int8" and 1.3 < int8.ratio < 2 and int8.low < int8.milliseconds < int8.high
    assert int8.megabytes < half.megabytes and found.changes == ()


@pytest.mark.parametrize("side", [16, 18, 20, 24, 40])  # from 0.96 to 1.3 of FP16's speed on this card
def test_the_format_to_use_is_the_one_that_deploy_keeps_where_it_loses_nothing(side: int) -> None:
    found = board(convolutions(side=str(side)), "rtx4090:10.13.3", formats=("int8",))
    none = Figure(0.0, Interval(0.0, 0.0))
    trials = [
        CandidateTrial(
            DeployCandidate(row.format, form, (), "why"), none, DeployCost(1.0, 1, "", microseconds=row.milliseconds)
        )
        for row, form in zip(found.rows, FORMS, strict=True)
    ]
    kept = choose(trials, None, lambda one, other: none).kept.candidate.name
    assert found.use == kept and f"Use {kept.upper()}" in found.sentences[-1]
    assert ("unless a measurement shows otherwise" in found.sentences[-1]) == (
        found.rows[1].verdict == "equal" and kept == "int8"
    )
    assert ("may pay" in found.sentence) == (found.rows[1].verdict == "equal" and kept == "int8")


def test_attention_over_many_tokens_does_not_pay_and_the_reason_is_named() -> None:
    found = board(long_attention(), "rtx4090:10.13.3", formats=("int8",))
    int8 = found.rows[1]
    assert int8.verdict != "pays" and found.use == "fp16" and "attention stays FP16" in found.sentence
    assert int8.shares["attention"] > 0.5 and "Use FP16." in found.sentence


def test_an_attention_that_is_several_kernels_is_named_so() -> None:
    found = board(long_attention(), "orin-nx:8.5.2", formats=("int8",))
    one = found.rows[1].shares
    assert one["unfused_attention"] > 0.5 and one["attention"] == 0 and "several kernels" in found.sentence


def test_a_model_of_a_large_batch_is_not_told_to_take_a_larger_one() -> None:
    found = board(convolutions(), "rtx4090:10.13.3", formats=("int8",), batches=(32,))
    assert not any("At batch" in change for change in found.changes)


def test_a_card_without_int8_tensor_cores_is_slower_in_int8() -> None:
    found = board(convolutions(), "v100:8.2.1", formats=("int8",))
    assert found.rows[1].verdict == "does not pay" and "no faster than FP16" in found.sentence


def test_formats_that_a_board_lacks_are_named_and_have_no_row() -> None:
    assert [row.format for row in board(convolutions()).rows] == ["fp16", "int8", "int4"]
    assert board(convolutions()).missing == ("fp8",)
    assert [row.format for row in board(convolutions(), "jetson-nano").rows] == ["fp16"]


def test_a_q_dq_file_is_taken_as_it_is_and_held_against_itself_without_pairs() -> None:
    placed = insert(convolutions()).model
    plain, given = board(convolutions(), formats=("int8",)), board(placed, formats=("int8",))
    assert [row.milliseconds for row in given.rows] == pytest.approx([row.milliseconds for row in plain.rows], rel=0.02)


@pytest.mark.parametrize(
    ("kind", "rows"),
    [("fp8", [["fp16", "fp8", "int4"], ["fp16", "int4"]]), ("int4", [["fp16", "int4"]] * 2)],
)
def test_a_file_of_another_format_has_no_row_of_int8_and_fp16_is_that_of_the_plain_model(
    kind: str, rows: list[list[str]], models: Path
) -> None:
    """Beside INT4's FP16 scales, or an FP16 rest, the row of FP16 was computed in FP32."""
    plain = onnx.load(models / "shapes_vit.onnx")
    file = insert(plain, options=InsertOptions(PlanOptions(format=kind))).model
    found, before = (forecast(one, ForecastOptions(("rtx4090:11.4.1", "orin"))) for one in (file, plain))
    assert [[row.format for row in board.rows] for board in found.boards] == rows
    half, same = (one.boards[0].rows[0].milliseconds for one in (before, found))
    assert same == pytest.approx(half) and any("--rest fp16" in line for line in found.boards[0].changes)


@pytest.mark.parametrize("rest", ["fp16", "fp32"])
def test_what_is_named_as_not_quantized_is_of_the_type_that_the_file_has(rest: str) -> None:
    """The quantized input of FP32 made a file whose rest is FP16 one of FP32, and attention in INT8 one that stays."""
    samples = [{"x": np.random.default_rng(0).normal(size=(1, 64, 128)).astype(np.float32)}]
    plan = PlanOptions(attention="int8", trt_version=parse("11.4.1"))
    file = insert(long_attention(64), data=samples, options=InsertOptions(plan, rest=rest)).model
    found = board(file, "rtx5090:11.4.1", formats=("int8", "fp8"))
    assert [row.shares["attention"] for row in found.rows[1:]] == [0, 0] and found.rows[0].shares["attention"] > 0
    told = [*found.sentences, *found.changes]
    assert any("FP32" in line for line in told) == any("--rest fp16" in line for line in told) == (rest == "fp32")


@pytest.mark.parametrize("kind", ["float8e4m3fn", "int4"])
def test_a_file_with_pairs_that_no_cache_can_say_is_held_against_itself_without_them(kind: str) -> None:
    """Its row in FP16 is that of the plain network, and the row in its own format is the faster one."""
    weights = "float[512,512] w"
    plain = model_of(f"g (float[1,4096,512] x) => (float[1,4096,512] y) <{weights}> {{ y = MatMul(x, w) }}")
    paired = model_of(
        f"g (float[1,4096,512] x) => (float[1,4096,512] y) <{weights}, float s = {{0.1}}, {kind} z = {{0}}> {{ q = QuantizeLinear(w, s, z) d = DequantizeLinear(q, s, z) y = MatMul(x, d) }}",
        opset=21,
        ir=10,
    )
    (half, *_), (same, *others) = (board(one, "rtx4090:10.13.3").rows for one in (plain, paired))
    assert same.milliseconds == pytest.approx(half.milliseconds)
    assert {row.format for row in others} == ({"int4"} if kind == "int4" else {"fp8", "int4"})


def test_a_larger_input_is_named_where_int8_pays_there_by_the_ratio_that_it_has() -> None:
    found, twice = (board(convolutions(side=side), formats=("int8",)) for side in ("10", "20"))
    assert twice.rows[1].verdict == "pays" and not twice.changes
    assert f"At twice the input's height and width INT8 pays ({twice.rows[1].ratio:.2f}x)." in found.changes
    assert not any("height" in one for one in board(long_attention(), "rtx4090:10.13.3").changes)


def test_a_larger_batch_takes_longer_and_less_for_each_sample() -> None:
    rows = board(convolutions(), formats=("fp16",), batches=(1, 8)).rows
    assert [row.batch for row in rows] == [1, 8]
    assert rows[0].milliseconds < rows[1].milliseconds <= 8 * rows[0].milliseconds
    assert board(convolutions("8"), formats=("fp16",)).rows[0].milliseconds == pytest.approx(rows[1].milliseconds)
    with pytest.raises(QdqError, match="multiple"):
        board(convolutions("8"), batches=(12,))


def test_a_power_mode_is_slower() -> None:
    whole, small = (board(convolutions(), place, formats=("fp16",)) for place in ("orin:jp6.1", "orin:jp6.1@15W"))
    assert small.device.name == "orin@15W" and small.rows[0].milliseconds > 2 * whole.rows[0].milliseconds


def test_free_sides_need_shapes() -> None:
    model = convolutions("N", "S")
    with pytest.raises(QdqError, match="--shapes"):
        board(model)
    fixed = board(model, shapes=f"x:1x256x{_SIDE}x{_SIDE}")
    assert fixed.rows[0].milliseconds == pytest.approx(board(convolutions()).rows[0].milliseconds)
    for wrong in ("x:1x3x80x80", "z:1x256x80x80"):
        with pytest.raises(QdqError, match="does not fit"):
            board(model, shapes=wrong)


@pytest.mark.parametrize(
    ("head", "shapes"),
    [
        ("int64[N,S] a, int64[N,S] b", "a:1x32,b:1x32"),
        ("int64[N,8,H,W] a, int64[N,8] b", "a:1x8x320x320,b:1x8"),
        ("int64[4,8,H,W] a, int64[4,1,1,1] b", "a:4x8x320x320"),
    ],
)
def test_the_hint_on_free_sides_has_the_inputs_of_the_model_and_runs(head: str, shapes: str) -> None:
    text = f"""g ({head}) => (float[A,B,C,D] y) <float[8,8,1,1] w, int64[4] s = {{1, 8, -1, 4}}>
    {{ p = Reshape(a, s) f = Cast<to=1>(p) g = Cast<to=1>(b) r = ReduceMax<keepdims=0>(g)
       m = Mul(f, r) y = Conv(m, w) }}"""
    with pytest.raises(QdqError) as caught:
        board(model_of(text), formats=("fp16",))
    assert f"such as --shapes {shapes} (in Python" in str(caught.value)
    assert board(model_of(text), formats=("fp16",), shapes=shapes).rows


def test_a_sentence_on_several_boards_is_printed_once() -> None:
    found = forecast(convolutions(), ForecastOptions(("orin-nx:jp6.1", "orin-nx-8gb:jp6.1"), ("fp16", "int8")))
    lines = found.summary()
    both = "orin-nx:jp6.1, orin-nx-8gb:jp6.1: "
    assert f"{both}{found.boards[0].title}" in lines
    for one in found.boards:
        for sentence in (*one.sentences, *one.changes):
            (line,) = [line for line in lines if line.endswith(f": {sentence}")]
            assert one.board in line
    assert f"{both}{found.boards[0].sentences[-1]}" in lines


def test_an_operator_that_makes_unknown_sizes_is_named_where_no_side_is_free() -> None:
    text = "g (float[1,4,8,8] x) => (float[N,M,A,B] y) <float[4,4,1,1] w> { u = Unheard(x) y = Conv(u, w) }"
    with pytest.raises(QdqError, match="Unheard u") as caught:
        board(model_of(text))
    assert "--shapes" not in str(caught.value)


def test_a_profile_calibrates_the_times_of_all_formats(tmp_path: Path) -> None:
    plain = board(convolutions(), formats=("int8",))
    profile = tmp_path / "profile.json"
    names = [one.name for one in plain.layers]
    profile.write_text(json.dumps([{"count": 1}, *({"name": name, "averageMs": 1.0} for name in names)]))
    tuned = board(convolutions(), formats=("int8",), profile=profile)
    assert tuned.rows[1].milliseconds == pytest.approx(len(names)) or tuned.rows[0].milliseconds == pytest.approx(
        len(names)
    )
    assert tuned.rows[1].ratio == pytest.approx(plain.rows[1].ratio)
    assert tuned.rows[0].high / tuned.rows[0].low < plain.rows[0].high / plain.rows[0].low
    profile.write_text(json.dumps([{"name": "another", "averageMs": 1.0}]))
    with pytest.raises(QdqError, match="no layer of it"):
        board(convolutions(), profile=profile)


def test_without_boards_all_whose_figures_are_known_are_there() -> None:
    found = forecast(convolutions(), ForecastOptions(formats=("fp16",)))
    assert [one.board for one in found.boards] == list(known_devices())
    assert found.to_json()["measured"] is False and "not a measurement" in found.notes[0]


def test_a_board_without_figures_is_refused() -> None:
    with pytest.raises(QdqError, match="name one of"):
        board(convolutions(), "rtx3070")


def test_insert_says_where_int8_pays_on_no_board() -> None:
    slow, fast = insert(long_attention()).notes, insert(convolutions()).notes
    assert [any("no board" in note for note in notes) for notes in (slow, fast)] == [True, False]
    assert pays_nowhere(None, None, None) == ""


@pytest.mark.parametrize(
    ("version", "target", "runs"),
    [("jp6.1", "gpu", "orin orin-nx"), ("10.3", "gpu", "orin orin-nx h100 t4"), (None, "rtx", "t4")],
)
def test_only_boards_that_run_the_version_are_asked(version: str | None, target: str, runs: str) -> None:
    found = {name for name, _ in fast_devices(None if version is None else parse(version), INT8, target=target)}
    assert found & {"xavier", "orin", "orin-nx", "h100", "t4"} == set(runs.split())


@pytest.mark.parametrize(
    "options",
    [{"formats": ("fp5",)}, {"batches": (0,)}, {"profile": "p.json"}, {"profile": "p.json", "places": ("orin", "t4")}],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(QdqError, match="--"):
        ForecastOptions(**options)  # type: ignore[arg-type]


def test_build_is_for_cards_of_tensorrt_for_rtx() -> None:
    with pytest.raises(QdqError, match=r"--build: .*Orin NX"):
        board(convolutions(), build=True)


@pytest.mark.rtx
def test_kernels_that_the_compiler_built_are_those_that_were_predicted() -> None:
    """Their bytes in INT8 are more: convolutions with a scale for each channel write their sums in FP32 there."""
    predicted, built = (board(convolutions(), "rtx4090:rtx", formats=("int8",), build=build) for build in (False, True))
    assert [row.kernels for row in predicted.rows] == pytest.approx([row.kernels for row in built.rows], abs=3)
    assert built.rows[0].milliseconds == pytest.approx(predicted.rows[0].milliseconds, rel=0.15)
    assert built.rows[1].megabytes > predicted.rows[1].megabytes


def test_a_free_batch_is_not_called_fixed_where_shapes_are_given() -> None:
    asked = ForecastOptions(("orin-nx:jp6.1",), formats=("int8",), shapes="x:1x256x8x8")
    fixed, free = (
        " ".join(forecast(convolutions(batch, side), asked).boards[0].changes)
        for batch, side in (("1", "8"), ("n", "side"))
    )
    assert "the file has a fixed batch of 1" in fixed
    assert "At batch 32" in free and "fixed batch" not in free
