# SPDX-License-Identifier: Apache-2.0
"""The verb `report`: what each input puts into the page, that it is the same every time, and what it refuses."""

from __future__ import annotations

import hashlib
import html
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool.cli.commands import Commands
from qdqtool.data.loader import DataOptions
from qdqtool.diagnosis.one_change import with_scales
from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.graph.io import open_model
from qdqtool.match.plan import PlanOptions
from qdqtool.scales import Scale
from qdqtool.verbs.insert import insert
from qdqtool.verbs.insert_options import InsertOptions
from qdqtool.workflows.report import report
from qdqtool.workflows.report_look import look_at
from qdqtool.workflows.report_options import ReportOptions
from tests.detector_model import BOXES, write_detector, write_images
from tests.graphs import V10, model_of
from tests.verbs.small_net import write_net

PLAIN = ReportOptions(parser=False)
INT8 = InsertOptions(PlanOptions(float_heads="none"))


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """m.onnx with its data d.npz, and m.qdq.onnx with estimated scales."""
    path = write_net(tmp_path)
    insert(path, output=tmp_path / "m.qdq.onnx", options=INT8)
    return tmp_path


def written(folder: Path, model: str = "m.qdq.onnx", **more: Any) -> str:
    report(folder / model, folder / "r.html", replace(PLAIN, **more))
    return (folder / "r.html").read_text(encoding="utf-8")


def headings(text: str) -> list[str]:
    return re.findall(r"<h2 [^>]*>(.*?)</h2>", text)


def card(text: str, label: str) -> str:
    found = re.findall(rf'<div class="card [^"]*"><dt>{re.escape(label)}</dt><dd>(.*?)</dd></div>', text)
    assert len(found) == 1, label
    return re.sub(r"<[^>]+>", " ", found[0])


def data_of(text: str) -> dict[str, Any]:
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    document: dict[str, Any] = json.loads(found[0])
    return document


# ---------------------------------------------------------------------------------------------------- without data


def test_a_model_alone_gives_verdict_graph_tables_findings_and_provenance(net: Path) -> None:
    text = written(net)
    assert headings(text) == [
        "Verdict",
        "Opportunities",
        "Graph",
        "Forecast",
        "Tensors",
        "Weights",
        "Findings of lint",
        "How this was made",
    ]
    assert "3 INT8" in card(text, "Convolutions and matrix products")
    assert "not measured" in card(text, "Loss")
    assert "estimated" in card(text, "Scales")
    assert "left out with --no-parser" in card(text, "NVIDIA&#x27;s parser")
    assert "--no-parser" in card(text, "NVIDIA&#x27;s parser")
    assert "forecast" in card(text, "Bytes moved, forecast")
    assert hashlib.sha256((net / "m.qdq.onnx").read_bytes()).hexdigest() in text


def test_the_page_is_one_file_without_addresses_and_the_same_every_time(net: Path) -> None:
    first = written(net)
    assert not re.findall(r"(?:src|href)=[\"']?https?:", first)
    assert "<svg" in first
    assert first == written(net)


def test_the_script_knows_boxes_nodes_and_rows(net: Path) -> None:
    found = data_of(written(net))
    assert {"c1", "r1", "c2", "r2", "g", "f", "y"} <= {
        found["tensors"][out] for node in found["nodes"] for out in node[4]
    }
    assert [found["tensors"][row] for row in found["rows"]] == ["x", "r1", "r2", "g"]
    assert all(0 <= end < len(found["boxes"]) for line in found["lines"] for end in line)
    (box,) = {node[2] for node in found["nodes"] if node[0] and found["tensors"][node[4][0]] == "c2"}
    settings = {node[0]: found["attributes"][node[5]] for node in found["nodes"]}
    assert [text for text in settings.values() if text.startswith("pads 1, 1, 1, 1")]
    assert found["boxes"][box][2] == "INT8" and "reads INT8" in found["boxes"][box][3]


def test_a_plain_model_says_that_nothing_is_quantized(net: Path) -> None:
    text = written(net, "m.onnx")
    assert "nothing is quantized" in text
    assert "Tensors" not in headings(text)
    assert "3 FP32" in card(text, "Convolutions and matrix products")


def test_layers_kept_in_float_are_told_apart(models: Path, tmp_path: Path) -> None:
    insert(models / "digits_detector.onnx", output=tmp_path / "head.onnx")
    text = written(tmp_path, "head.onnx")
    assert "on purpose" in card(text, "Convolutions and matrix products")
    assert '<g class="b kept"' in text


def test_a_model_in_memory_is_reported_and_stays_as_it_is(net: Path) -> None:
    model = onnx.load(net / "m.qdq.onnx")
    before = model.SerializeToString(deterministic=True)
    result = report(model, net / "r.html", PLAIN)
    assert result.size == (net / "r.html").stat().st_size
    assert model.SerializeToString(deterministic=True) == before
    assert "in memory" in (net / "r.html").read_text()


def test_pairs_that_cannot_be_taken_out_leave_a_note_and_no_scales(net: Path) -> None:
    broken = onnx.load(net / "m.qdq.onnx")
    (scale,) = (tensor for tensor in broken.graph.initializer if tensor.name == "x_estimated_scale")
    scale.raw_data = np.float32(-1).tobytes()
    result = report(broken, net / "r.html", PLAIN)
    assert result.notes and "scales of the Q/DQ pairs" in result.notes[0]
    assert "note 1" in (net / "r.html").read_text()


# ---------------------------------------------------------------------------------------------------- with data


def test_data_add_histograms_clipped_shares_and_signal_to_noise(net: Path) -> None:
    pytest.importorskip("onnxruntime")
    text = written(net, data=str(net / "d.npz"), data_options=DataOptions(limit=4))
    assert text.count('class="cut"') >= 3
    assert "Values of 4 samples" in text
    assert "0: as the FP32 model; 2 samples" in card(text, "Loss at the outputs")
    assert "%" in card(text, "Loss of top-1 agreement with the FP32 model"), (
        "its output looks like that of a classifier"
    )
    assert text == written(net, data=str(net / "d.npz"), data_options=DataOptions(limit=4))


@pytest.mark.slow
def test_a_cause_of_the_loss_has_a_command_that_does_away_with_it(models: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    data = str(models / "digits_calib.npz")
    how = replace(INT8, data_options=DataOptions(limit=8))
    whole = insert(onnx.load(models / "digits_detector.onnx"), data=data, options=how)
    broken = with_scales(open_model(whole.model), {"/stage8a/relu/Relu_output_0": Scale.of(1e-4)})
    onnx.save(broken.proto, tmp_path / "b.onnx")
    text = written(tmp_path, "b.onnx", data=data, data_options=DataOptions(limit=8), trt_version=V10)
    assert "saturated tensor" in card(text, "Likely cause of the loss")
    assert "likely cause: saturated tensor" in text.partition("<nav")[0]
    commands = [html.unescape(re.sub("<wbr>", "", one)) for one in re.findall('<td class="w"><code>(.*?)</code>', text)]
    command = next(one for one in commands if one.startswith("qdqtool insert "))
    words = shlex.split(command)
    assert str(tmp_path / "b.onnx") in words and data in words
    assert words[-4:-2] == ["--trt-version", "10.3.0"]
    Commands().check(words[1:])


def test_opportunities_and_the_forecast_of_a_model_alone(net: Path) -> None:
    text = written(net)
    assert "INT8 pays on no board known" in text and "orin-nx" in text
    assert "launches of " in text
    forecast = text.partition('id="forecast"')[2].partition("</section>")[0]
    assert forecast.count('<tr id="boards-') > 20 and forecast.count('<tr id="kernels-') >= 3
    assert forecast.count('class="share"') == 2 * forecast.count('<tr id="kernels-')
    plain = written(net, "m.onnx")
    assert "which qdqtool insert would place without data" in plain
    assert "INT8 pays on 0 of " in card(plain, "Speed of INT8 over FP16, forecast")


def test_a_model_with_free_sides_has_no_forecast(tmp_path: Path) -> None:
    model = model_of(
        "g (float[1,3,h,w] x) => (float[1,4,h,w] y) <float[4,3,3,3] w1> { y = Conv <pads = [1,1,1,1]> (x, w1) }"
    )
    onnx.save(model, tmp_path / "m.onnx")
    assert "Forecast" not in headings(written(tmp_path, "m.onnx"))


def test_labels_add_the_loss_with_its_interval(net: Path) -> None:
    pytest.importorskip("onnxruntime")
    np.save(net / "labels.npy", np.arange(6) % 3)
    text = written(net, data=str(net / "d.npz"), labels=net / "labels.npy", reference=net / "m.onnx")
    assert "95 % interval" in card(text, "Loss of top-1")
    assert "not TensorRT" in card(text, "Loss of top-1")
    assert hashlib.sha256((net / "m.onnx").read_bytes()).hexdigest() in text


def test_a_plain_model_with_data_shows_histograms_alone(net: Path) -> None:
    pytest.importorskip("onnxruntime")
    text = written(net, "m.onnx", data=str(net / "d.npz"))
    assert 'class="hist"' in text and "SQNR dB" not in text


def test_labels_give_a_plain_model_its_own_figure(net: Path) -> None:
    """They were read by nothing, and the page said that --data and --labels measure it."""
    pytest.importorskip("onnxruntime")
    np.save(net / "labels.npy", np.arange(6) % 3)
    text = written(net, "m.onnx", data=str(net / "d.npz"), labels=net / "labels.npy")
    assert "95 % interval" in card(text, "Top-1") and "--labels measure it" not in text


def test_the_worst_images_of_a_detector_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("PIL")
    other = (BOXES[0], (1, 0.5, (8.0, 40.0, 24.0, 60.0)))  # the first box, and one that the reference has not
    reference, model = write_detector(tmp_path / "fp32.onnx"), write_detector(tmp_path / "other.onnx", other)
    data = str(write_images(tmp_path / "data", 0, 170, 255))
    options = replace(PLAIN, reference=reference, data=data, data_options=DataOptions(preprocess="yolox"), pictures=1)
    result = report(model, tmp_path / "r.html", options)
    text = (tmp_path / "r.html").read_text()
    assert "Worst images" in result.sections
    assert text.count("data:image/jpeg;base64,") == 1
    assert "c.png: of 2 boxes of the FP32 model 1 lost (red), 1 spurious (orange)" in text
    assert "of 4 boxes in 3 images 2 are lost and 2 spurious" in text
    assert "%" in card(text, "Loss of agreement with the FP32 model")


def test_the_worst_images_of_a_classifier_are_those_with_another_class(models: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("PIL")
    other = onnx.load(models / "tiny_classifier.onnx")
    for tensor in other.graph.initializer:
        if 10 in tensor.dims:
            tensor.raw_data = (-np.frombuffer(tensor.raw_data, np.float32)).tobytes()
    onnx.save(other, tmp_path / "other.onnx")
    with np.load(models / "digits8_calib.npz") as stored:
        np.savez(tmp_path / "d.npz", images=stored["images"][:24])
    np.save(tmp_path / "y.npy", np.zeros(24, np.int64))
    options = replace(PLAIN, data=str(tmp_path / "d.npz"), labels=tmp_path / "y.npy", pictures=2)
    options = replace(options, reference=models / "tiny_classifier.onnx")
    report(tmp_path / "other.onnx", tmp_path / "r.html", options)
    text = (tmp_path / "r.html").read_text()
    found = re.findall(r"(\d+) of 24 images have another top class than in the FP32 model", text)
    assert text.count("data:image/jpeg;base64,") == min(2, int(found[0])) >= 1
    assert re.search(r"sample_\d+: FP32: class \d 0\.\d\d; this model: class \d", text)


def test_without_a_decoder_the_note_is_short(models: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    insert(models / "digits_detector.onnx", output=tmp_path / "q.onnx")
    options = replace(PLAIN, data=str(models / "digits_calib.npz"), data_options=DataOptions(limit=2))
    (note,) = report(tmp_path / "q.onnx", tmp_path / "r.html", options).notes
    assert note.startswith("no task metric: ") and len(note) < 200


def test_a_state_gives_the_histograms_without_data(net: Path) -> None:
    pytest.importorskip("onnxruntime")
    options = qdqtool.CalibrationOptions(method="mse", checkpoint=net / "state.npz", inner=False)
    qdqtool.calibrate(net / "m.onnx", str(net / "d.npz"), options)
    text = written(net, state=net / "state.npz")
    assert "Histograms of a" in text and 'class="cut"' in text


# ---------------------------------------------------------------------------------------------------- other files


def test_a_cache_is_held_against_the_model(net: Path) -> None:
    (net / "c.cache").write_text("TRT-8502-EntropyCalibration2\nx: 3f000000\nr_1: 3f000000\n")
    text = written(net, cache=net / "c.cache")
    assert "Calibration cache" in headings(text)
    assert "is it r1?" in text and "1 of 8 float tensors" in text
    assert "Cache covers" in text


def test_sensitivity_and_a_log_have_sections(net: Path) -> None:
    one = {"node": "c1", "op": "Conv", "local": 0.25, "without": None, "share": 0.1}
    (net / "s.json").write_text(json.dumps({"loss": 0.5, "operators": [one]}))
    lines = [json.dumps({"event": "step", "step": n, "loss": 1 / n}) for n in (1, 2, 3)]
    (net / "t.log").write_text("\n".join([*lines, '{"event": "st']))
    text = written(net, sensitivity=net / "s.json", log=net / "t.log")
    assert {"Sensitivity", "Training"} <= set(headings(text))
    assert "from 1 to 0.3333" in text


def test_built_layers_take_the_place_of_predicted_ones(net: Path) -> None:
    layers = [
        {
            "Name": "w1 + w1_Q + c1",
            "LayerType": "CaskConvolution",
            "Inputs": [
                {"Name": "x", "Dimensions": [1, 4, 8, 8], "Format/Datatype": "Four wide channel vectorized INT8 format"}
            ],
            "Outputs": [
                {
                    "Name": "r1",
                    "Dimensions": [1, 4, 8, 8],
                    "Format/Datatype": "Four wide channel vectorized INT8 format",
                }
            ],
        }
    ]
    (net / "l.json").write_text(json.dumps({"Layers": layers, "Bindings": ["x", "y"]}))
    text = written(net, layers=net / "l.json")
    assert "layers of the built engine" in text
    assert "1 INT8" in card(text, "The same in the built engine")
    assert any("built, as predicted" in box[3] for box in data_of(text)["boxes"])


def test_another_model_is_set_beside_it(net: Path) -> None:
    keep = InsertOptions(PlanOptions(float_heads="none", heads=("c2",)))
    insert(net / "m.onnx", output=net / "b.onnx", options=keep)
    other = onnx.load(net / "b.onnx")
    (scale,) = (tensor for tensor in other.graph.initializer if tensor.name == "x_estimated_scale")
    scale.raw_data = (2 * np.frombuffer(scale.raw_data, np.float32)).tobytes()
    onnx.save(other, net / "b.onnx")
    text = written(net, diff=net / "b.onnx")
    assert "Beside b.onnx" in headings(text)
    assert 'data-v="0.5">0.5' in text, "the ratio"
    rows = re.findall(r'<tr id="other-types-\d+">(.*)', text)
    assert any("c2" in row and "<td>INT8<td>FP32" in row for row in rows)
    assert "Scales that differ (0)" not in text
    assert "Scales that differ (0)" in written(net, diff=net / "m.qdq.onnx")


# ---------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"labels": "l.npy"}, "--labels: is for --data, which is not given"),
        ({"names": "coco"}, "--names: is for --data, which is not given"),
        ({"log": "bad"}, "has no training steps"),
        ({"sensitivity": "bad"}, "is not a table of sensitivity"),
        ({"sensitivity": "empty"}, "is not a sensitivity table"),
        ({"cache": "bad"}, "is not the header of a calibration cache"),
        ({"state": "bad"}, "bad"),
        ({"layers": "missing"}, "missing"),
        ({"reference": "missing", "data": "d.npz"}, "missing"),
    ],
)
def test_what_does_not_fit_is_one_line_and_nothing_is_written(net: Path, given: dict[str, str], words: str) -> None:
    (net / "bad").write_text("no such thing\n")
    (net / "empty").write_text("{}")
    paths = {name: value if value == "coco" else str(net / value) for name, value in given.items()}
    with pytest.raises(QdqError, match=re.escape(words)):
        written(net, **paths)
    assert not (net / "r.html").exists()


def test_inputs_are_never_overwritten(net: Path) -> None:
    for name in ("m.qdq.onnx", "c.cache"):
        (net / "c.cache").write_text("TRT-8502-EntropyCalibration2\nx: 3f000000\n")
        before = (net / name).read_bytes()
        with pytest.raises(QdqError):
            report(net / "m.qdq.onnx", net / name, replace(PLAIN, cache=net / "c.cache"))
        assert (net / name).read_bytes() == before


def test_a_parser_that_is_asked_for_and_missing_is_said(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QDQTOOL_RTX_PYTHON", "none")
    with pytest.raises(MissingPackageError):
        written(net, parser=True)
    assert "not asked" in card(written(net, parser=None), "NVIDIA&#x27;s parser")


@pytest.mark.rtx
def test_the_parsers_verdict_is_shown(net: Path) -> None:
    assert "accepts it" in card(written(net, parser=None), "NVIDIA&#x27;s parser")


def test_the_command_that_repairs_looks_for_what_the_report_found(net: Path) -> None:
    """Without the version, lint found nothing to lower; a name with a space was two words."""
    onnx.save(onnx.load(net / "m.onnx"), net / "my model.onnx")
    text = written(net, "my model.onnx", trt_version="7.1.3")
    (command,) = set(re.findall(r"<code>(qdqtool lint [^<]* --fix Q014)</code>", text))
    words = shlex.split(html.unescape(command))
    assert words[2:] == ["my model.onnx", "--trt-version", "7.1.3", "-o", "my model.fixed.onnx", "--fix", "Q014"]


def test_no_command_repairs_a_model_with_types_of_its_own(net: Path) -> None:
    pytest.importorskip("onnxruntime")
    plain = onnx.load(net / "m.onnx")
    plain.graph.input[0].name = plain.graph.node[0].input[0] = "x:0"
    data = {"x:0": np.load(net / "d.npz")["x"]}
    for name, rest in (("fp32.onnx", "fp32"), ("fp16.onnx", "fp16")):
        asked = InsertOptions(INT8.plan, rest=rest)  # type: ignore[arg-type]
        onnx.save(insert(plain, data=data, options=asked).model, net / name)
        text = written(net, name)
        assert "Q017" in text and ("<code>qdqtool lint" in text) is (rest == "fp32")


CONDITIONED = """g (float[1,8,16,16] x) => (float[1,8,16,16] y) <float[8,8,1,1] w, float[8,8,1,1] v, float[1,8,1,1] k>
{ c = Conv(x, w) m = Mul(c, k) y = Conv(m, v) }"""


def test_the_fp16_size_beside_int8_is_that_of_the_model_as_given(tmp_path: Path) -> None:
    """It was that of the model with the Muls that editing weights added."""

    def fp16(text: str, reference: onnx.ModelProto | None = None) -> int | None:
        model = model_of(text)
        for node in model.graph.node:
            if node.op_type == "Mul":
                node.metadata_props.add(key="qdqtool.origin", value="condition")
        made = insert(model, options=INT8).model
        bare = look_at(open_model(made), replace(PLAIN, reference=reference)).bare
        assert bare is not None
        return bare.bytes_moved

    given = CONDITIONED.replace("m = Mul(c, k) y = Conv(m, v)", "y = Conv(c, v)")
    assert fp16(CONDITIONED) == fp16(given) == fp16(CONDITIONED, model_of(given))
    assert fp16(given) != fp16(given, model_of(CONDITIONED)), "the reference is what the user has"
