# SPDX-License-Identifier: Apache-2.0
"""The Gst-nvinfer group: read back as a key file, its arithmetic against the preprocessing it is derived from."""

from __future__ import annotations

import configparser
import re
from dataclasses import replace

import numpy as np
import pytest

from qdqtool.data.preprocess import PRESETS, Preprocess, parse_preprocess
from qdqtool.emit import emit
from qdqtool.emit.deepstream import write_deepstream
from qdqtool.emit.job import EmitJob, Tensor
from qdqtool.errors import QdqError
from tests.emit.jobs import FLOAT, job_of, layer

# Keys of the group that the plug-in parses: gstnvinfer_property_parser.h (2021), read there.
DOCUMENTED = frozenset(
    [
        "gpu-id",
        "onnx-file",
        "int8-calib-file",
        "model-engine-file",
        "batch-size",
        "network-mode",
        "network-input-order",
        "infer-dims",
        "net-scale-factor",
        "offsets",
        "model-color-format",
        "maintain-aspect-ratio",
        "symmetric-padding",
        "enable-dla",
        "use-dla-core",
        "layer-device-precision",
        "network-type",
        "output-tensor-meta",
    ]
)


def keys_of(job: EmitJob) -> dict[str, str]:
    """The group [property], the only one."""
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",), strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(write_deepstream(job).text)
    assert parser.sections() == ["property"]
    return dict(parser["property"])


def with_images(spec: str | Preprocess, channels: int = 3) -> dict[str, str]:
    value = parse_preprocess(spec) if isinstance(spec, str) else spec
    return keys_of(job_of(preprocess=value, inputs=(Tensor("x", FLOAT, (1, channels, 240, 320)),)))


def test_model_cache_and_mode() -> None:
    keys = keys_of(job_of())
    assert keys["onnx-file"] == "m.onnx" and keys["int8-calib-file"] == "m.cache"
    assert keys["model-engine-file"] == "m.onnx_b1_gpu0_int8.engine", "as Gst-nvinfer calls what it builds"
    assert keys["network-mode"] == "1" and keys["batch-size"] == "1" and keys["infer-dims"] == "3;240;320"
    assert keys["network-input-order"] == "0"
    assert not {"enable-dla", "use-dla-core"} & set(keys)


@pytest.mark.parametrize(("target", "device"), [("gpu", "gpu0"), ("dla", "dla0")])
def test_the_engine_that_a_script_builds_is_the_one_that_is_read(target: str, device: str) -> None:
    """And the one that Gst-nvinfer saves, so that nothing is built twice."""
    inputs = (Tensor("x", FLOAT, (None, 3, 8, 8)),)
    texts = emit(job_of(target=target, inputs=inputs, batch=4), ["trtexec", "polygraphy-script", "deepstream"])
    name = f"m.onnx_b4_{device}_int8.engine"
    assert f"model-engine-file={name}\n" in texts["deepstream"].text and "batch-size=4\n" in texts["deepstream"].text
    assert f"--saveEngine={name}" in texts["trtexec"].text
    assert f"--save-engine {name}" in texts["polygraphy-script"].text
    assert "run m.trtexec.sh before" in texts["deepstream"].text
    assert "--saveEngine=m.engine" in emit(job_of(), ["trtexec"])["trtexec"].text


def test_an_old_trtexec_that_cannot_keep_layers_in_float_is_not_recommended() -> None:
    kinds = ["trtexec", "deepstream"]
    assert "before the first" not in emit(job_of("8.2.1"), kinds)["deepstream"].text
    assert "before the first" in emit(job_of("8.2.1", layers=()), kinds)["deepstream"].text


def test_a_model_with_qdq_is_built_by_its_script_before_the_start() -> None:
    text = write_deepstream(job_of("10.3.0", cache="", layers=())).text
    assert "model-engine-file=m.engine\n" in text and "int8-calib-file=" not in text
    assert "# Run m.trtexec.sh on the board" in text
    assert "# Gst-nvinfer cannot build" in text
    assert "cannot build" not in write_deepstream(job_of("11.0.0", cache="", layers=())).text
    half = write_deepstream(job_of("10.3.0", cache="", layers=(), int8=False)).text
    assert "network-mode=2\n" in half and "each start" in half and "cannot build" not in half


def test_the_dla_is_enabled_for_the_dla() -> None:
    keys = keys_of(job_of(target="dla"))
    assert (keys["enable-dla"], keys["use-dla-core"]) == ("1", "0")


@pytest.mark.parametrize("target", ["gpu", "dla"])
@pytest.mark.parametrize("preset", [*PRESETS, "size=8x8"])
def test_every_key_is_documented(preset: str, target: str) -> None:
    assert set(keys_of(job_of(target=target, preprocess=parse_preprocess(preset)))) <= DOCUMENTED


@pytest.mark.parametrize(
    "spec",
    [
        "yolov5",
        "yolov8",
        "yolox",
        "ssd",
        "ultraface",
        "scale=1/255,mean=0.5,std=0.25",
        "scale=1/255,mean=0.485:0.456:0.406",
        "mean=103.53:116.28:123.675,std=57.4,color=bgr",
        "mean=1:2:3,std=7:7:7",
        "scale=0.5",
    ],
)
def test_its_formula_gives_what_the_preprocessing_gives(spec: str) -> None:
    value, keys = parse_preprocess(spec), with_images(spec)
    pixels = np.random.default_rng(1).integers(0, 256, (50, 3)).astype(np.float64)
    expected = (pixels * value.scale - np.array(value.mean)) / np.array(value.std)
    offsets = np.array([float(word) for word in keys.get("offsets", "0;0;0").split(";")])
    assert offsets.shape == (3,)
    # Gst-nvinfer keeps factor and offsets as float32: 24 bits of the largest term, 255 * factor
    np.testing.assert_allclose(
        float(keys["net-scale-factor"]) * (pixels - offsets), expected, atol=2**-22 * 255 * value.scale / min(value.std)
    )


@pytest.mark.parametrize(
    ("spec", "color", "keep", "symmetric"),
    [
        ("ultraface", "0", "0", None),
        ("yolox", "1", "1", "0"),
        ("yolov5", "0", "1", "1"),
        ("color=bgr,resize=stretch", "1", "0", None),
    ],
)
def test_color_and_padding(spec: str, color: str, keep: str, symmetric: str | None) -> None:
    keys = with_images(spec)
    assert (keys["model-color-format"], keys["maintain-aspect-ratio"]) == (color, keep)
    assert keys.get("symmetric-padding") == symmetric


def test_a_grey_model_has_one_offset() -> None:
    keys = with_images("mean=127,std=128", channels=1)
    assert (keys["model-color-format"], keys["offsets"]) == ("2", "127")


def test_one_factor_for_channels_that_differ_is_that_of_the_mean_std() -> None:
    job = job_of(preprocess=PRESETS["imagenet"])
    keys, (warning, *_) = keys_of(job), write_deepstream(job).warnings
    assert float(keys["net-scale-factor"]) == pytest.approx(1 / 255 / np.mean([0.229, 0.224, 0.225]), rel=1e-6)
    assert keys["offsets"] == "123.675;116.28;103.53"
    assert "one per channel (0.017124753, 0.017507004, 0.017429193)" in warning and "1.3 % off at most" in warning
    assert "divide" not in warning and "until then" not in warning
    assert f"# {warning}" in write_deepstream(job).text


def test_what_the_warning_says_makes_the_factors_exact() -> None:
    """The convolution whose weights are multiplied, fed x - offset, gives what the model gives."""
    spec = PRESETS["imagenet"]
    (warning, *_) = write_deepstream(job_of(preprocess=spec)).warnings
    assert "first convolution's weights" in warning and "net-scale-factor=1" in warning
    told = parse_preprocess(next(word for word in warning.split() if word.startswith("scale=1,")).rstrip(","))
    factors = np.array([float(word) for word in warning.split("(")[1].split(")")[0].split(",")])
    rng = np.random.default_rng(2)
    pixels, weights = rng.integers(0, 256, (9, 3)).astype(np.float64), rng.normal(size=(5, 3))
    expected = ((pixels * spec.scale - np.array(spec.mean)) / np.array(spec.std)) @ weights.T
    plain = (pixels * told.scale - np.array(told.mean)) / np.array(told.std)
    np.testing.assert_allclose(plain @ (weights * factors).T, expected, atol=1e-5)


def test_a_crop_and_a_grey_border_are_warned_about() -> None:
    assert any("the center" in w for w in write_deepstream(job_of(preprocess=PRESETS["imagenet"])).warnings)
    (grey,) = write_deepstream(job_of(preprocess=PRESETS["yolov5"])).warnings
    assert "grey 114" in grey and grey.endswith("calibrate with --preprocess ...,pad=0")
    assert write_deepstream(job_of(preprocess=parse_preprocess("yolov5,pad=0"))).warnings == ()


def test_without_preprocessing_it_says_what_is_missing() -> None:
    job = job_of()
    assert not {"net-scale-factor", "offsets", "model-color-format"} & set(keys_of(job))
    assert write_deepstream(job).warnings[0].startswith("no --preprocess was given")


def test_float_layers_with_their_device() -> None:
    """All in FP32 on the GPU: network-mode=1 sets kINT8 alone, and then TensorRT refuses a layer in FP16."""
    for target in ("gpu", "dla"):
        assert keys_of(job_of(target=target))["layer-device-precision"] == "head:fp32:gpu;stem:fp32:gpu"
    assert "has no FP32" in write_deepstream(job_of(target="dla")).text
    assert "layer-device-precision" not in keys_of(job_of(layers=()))
    lost = job_of(layers=(layer("", node="a;b", unnamed="its name"),))
    assert "layer-device-precision" not in keys_of(lost)
    assert re.search("# Gst-nvinfer .*float: Conv a;b: its name", write_deepstream(lost).text)


@pytest.mark.parametrize(
    ("shape", "layout", "order", "dims"),
    [
        ((1, 240, 320, 3), None, "1", "3;240;320"),
        ((4, 3, 24, 32), None, "0", "3;24;32"),
        ((None, 3, None, None), None, "0", None),
        ((1, 3, 8, 3), "nhwc", "1", "3;3;8"),
    ],
)
def test_layout_and_size(shape: tuple[int | None, ...], layout: str | None, order: str, dims: str | None) -> None:
    spec = parse_preprocess(f"layout={layout}" if layout else "ssd")
    job = job_of(inputs=(Tensor("x", FLOAT, shape),), preprocess=spec, batch=2)
    keys = keys_of(job)
    assert (keys["network-input-order"], keys.get("infer-dims")) == (order, dims)
    assert keys["batch-size"] == str(shape[0] or 2)


@pytest.mark.parametrize("inputs", [(), (Tensor("ids", FLOAT, (1, 16)),), (Tensor("x", FLOAT, (1, 3, 8, 8)),) * 2])
def test_a_model_without_one_image_is_refused(inputs: tuple[Tensor, ...]) -> None:
    with pytest.raises(QdqError, match=r"Gst-nvinfer .*one image"):
        write_deepstream(job_of(inputs=inputs))


def test_inputs_beside_the_image_are_told_of() -> None:
    inputs = (Tensor("x", FLOAT, (1, 3, 8, 8)), Tensor("meta", FLOAT, (1, 4)))
    note = "Gst-nvinfer feeds x alone: a library of yours gives meta its values"
    assert note in write_deepstream(job_of(inputs=inputs)).warnings
    assert not any("alone" in text for text in write_deepstream(job_of(inputs=inputs[:1])).warnings)


def test_eleven_is_refused() -> None:
    with pytest.raises(QdqError, match=r"11.0.0.* no calibration caches"):
        write_deepstream(job_of("11.0.0"))


def test_a_model_in_another_folder_is_said_to_be_there() -> None:
    said = "# paths are as seen from this file: copy the folders"
    assert said in write_deepstream(replace(job_of(), model="../data/m.onnx")).text
    assert said not in write_deepstream(job_of()).text
