# SPDX-License-Identifier: Apache-2.0
"""`qdqtool ptq` beside caches that NVIDIA documents for its sample sampleINT8 (MNIST, LeNet), whose images are known.

Checked: the scale of `data`, to the bit, in all three tables: TensorRT 7.0.0 on pixels / 255, 5.1.0 on pixels / 256
(inferred from its value; the older table, a plain maximum, says 255/256 too, which is a second witness), 500 images in
ten batches of 50; which tensors have an entry and in what order; which of them share one, for the network of the sample
with weights of our own.

Not checked, as the trained weights are not to be had: the values of conv1, conv2, ip1, ip2 and prob; whether a tied
value is the larger of the two (with one value published, both readings fit); ip1 before its ReLU, which Caffe computes
in place, so that the table has one entry for the two.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from qdqtool.cache.text import Cache, read_cache
from tests.cli.command import run

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

Capsys = pytest.CaptureFixture[str]
PAIR = "trt/pairs/tensorrt_mnist_sampleINT8"
# version, its table, what the pixels were divided by, the vector that holds the result
PUBLISHED = {
    "5.1.0": ("CalibrationTablemnist_TRT5100", 256, "mnist_train500_div256"),
    "7.0.0": ("CalibrationTablemnist_TRT7000", 255, "mnist_train500_div255"),
}
# Tensors of the ONNX graph that Caffe's has no name for: ip1 before the ReLU in place, and what Gemm asks for.
OURS_ALONE = {"ip1_before", "pool2_flat"}
WEIGHTS = {"conv1": (20, 1, 5, 5), "conv2": (50, 20, 5, 5), "ip1": (500, 800), "ip2": (10, 500)}
DARK = {"conv1": -0.1}  # the mean of its weights: the largest values are negative, and a maximum pooling drops them


def layers(shared: Path) -> list[tuple[str, str, str]]:
    """(type, bottom, top) of each layer of the sample's network, as its prototxt lists them."""
    text = (shared / PAIR / "deploy.prototxt").read_text()
    found = []
    for block in text.split("\nlayer {")[1:]:
        kind, top = (re.search(rf'\b{key}: "(\w+)"', block) for key in ("type", "top"))
        bottom = re.search(r'\bbottom: "(\w+)"', block)
        assert kind and top
        found.append((kind[1], bottom[1] if bottom else "", top[1]))
    return found


def nodes_of(kind: str, bottom: str, top: str) -> list[onnx.NodeProto]:
    """A layer as ONNX nodes; a layer in place reads the name that its producer was given instead."""
    if kind == "Convolution":
        return [helper.make_node("Conv", [bottom, f"{top}_w"], [top])]
    if kind == "Pooling":
        return [helper.make_node("MaxPool", [bottom], [top], kernel_shape=[2, 2], strides=[2, 2])]
    if kind == "InnerProduct":
        flat = [helper.make_node("Flatten", [bottom], [f"{bottom}_flat"])] if bottom == "pool2" else []
        made = f"{top}_before" if top == "ip1" else top
        source = flat[0].output[0] if flat else bottom
        return [*flat, helper.make_node("Gemm", [source, f"{top}_w"], [made], transB=1)]
    if kind == "ReLU":
        return [helper.make_node("Relu", [f"{bottom}_before"], [top])]
    assert kind == "Softmax"
    return [helper.make_node("Softmax", [bottom], [top], axis=1)]


def write_lenet(shared: Path, path: Path) -> Path:
    """The sample's network with seeded weights."""
    random = np.random.default_rng(11)
    weights = {
        f"{name}_w": random.normal(DARK.get(name, 0), np.prod(shape[1:]) ** -0.5, shape).astype(np.float32)
        for name, shape in WEIGHTS.items()
    }
    graph = helper.make_graph(
        [node for layer in layers(shared) if layer[0] != "Input" for node in nodes_of(*layer)],
        "LeNet",
        [helper.make_tensor_value_info("data", onnx.TensorProto.FLOAT, ["N", 1, 28, 28])],
        [helper.make_tensor_value_info("prob", onnx.TensorProto.FLOAT, ["N", 10])],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString())
    return path


def write_images(shared: Path, path: Path, divisor: int) -> Path:
    """The 500 images that were calibrated on."""
    images = np.load(shared / PAIR / "mnist_train_first1000.npy")[:500, None]
    np.savez(path, data=images.astype(np.float32) / np.float32(divisor))
    return path


def published(shared: Path, version: str) -> Cache:
    return read_cache(shared / PAIR / PUBLISHED[version][0])


def bits(scale: np.float32) -> str:
    return f"{int(scale.view(np.uint32)):08x}"


def equal_sets(cache: Cache) -> set[frozenset[str]]:
    """Names of one scale, two or more."""
    by_bits: dict[str, set[str]] = {}
    for name, scale in cache.entries.items():
        by_bits.setdefault(bits(scale), set()).add(name)
    return {frozenset(names - OURS_ALONE) for names in by_bits.values() if len(names - OURS_ALONE) > 1}


def ptq(shared: Path, folder: Path, capsys: Capsys, version: str, divisor: int, *words: str) -> Cache:
    """The cache that the command writes for the network and the images."""
    model = write_lenet(shared, folder / "lenet.onnx")
    data = write_images(shared, folder / "mnist.npz", divisor)
    said = run(capsys, "ptq", model, "--data", data, "--batch", 50, "--target", "gpu", "--trt-version", version, *words)
    assert said.code == 0, said.err
    return read_cache(folder / "lenet.cache")


@pytest.mark.shared
@pytest.mark.parametrize("version", PUBLISHED)
def test_the_pair_and_the_vectors_are_the_same_images(shared: Path, tmp_path: Path, version: str) -> None:
    _, divisor, vector = PUBLISHED[version]
    images = np.load(write_images(shared, tmp_path / "mnist.npz", divisor))["data"]
    with np.load(shared / "trt/vectors" / f"{vector}.npz") as batches:
        assert np.array_equal(np.concatenate([batches[f"arr_{index}"] for index in range(10)]), images[:, 0])
    rows = {row["name"]: row for row in json.loads((shared / "trt/vectors/vectors.json").read_text())}
    assert rows[vector]["trt"] == version
    assert rows[vector]["expected_hex"] == bits(published(shared, version).entries["data"])


@pytest.mark.shared
@pytest.mark.parametrize("version", PUBLISHED)
def test_the_published_input_and_ties(shared: Path, tmp_path: Path, capsys: Capsys, version: str) -> None:
    want = published(shared, version)
    got = ptq(shared, tmp_path, capsys, version, PUBLISHED[version][1])
    assert got.header == want.header
    assert bits(got.entries["data"]) == bits(want.entries["data"])
    assert [name for name in got.entries if name not in OURS_ALONE] == list(want.entries)
    pools = {frozenset((bottom, top)) for kind, bottom, top in layers(shared) if kind == "Pooling"}
    assert equal_sets(got) == equal_sets(want) == pools
    assert len(pools) == 2


@pytest.mark.shared
@pytest.mark.parametrize("version", PUBLISHED)
def test_other_pixels_or_another_method_give_another_scale(
    shared: Path, tmp_path: Path, capsys: Capsys, version: str
) -> None:
    want = bits(published(shared, version).entries["data"])
    other = 511 - PUBLISHED[version][1]
    assert bits(ptq(shared, tmp_path, capsys, version, other).entries["data"]) != want
    maximum = ptq(shared, tmp_path, capsys, version, PUBLISHED[version][1], "--method", "max")
    assert bits(maximum.entries["data"]) != want


@pytest.mark.slow
@pytest.mark.shared
def test_without_ties_every_tensor_has_its_own(shared: Path, tmp_path: Path, capsys: Capsys) -> None:
    """So the sets of the test above are the rules' doing, not the data's."""
    alone = ptq(shared, tmp_path, capsys, "7.0.0", 255, "--no-shared-scales")
    assert equal_sets(alone) == set()
    tied = ptq(shared, tmp_path, capsys, "7.0.0", 255)
    for conv, pool in (("conv1", "pool1"), ("conv2", "pool2")):
        assert bits(tied.entries[conv]) == bits(max(alone.entries[conv], alone.entries[pool]))
    assert bits(tied.entries["ip1"]) == bits(alone.entries["ip1"])


@pytest.mark.shared
def test_the_older_table_is_a_maximum_of_pixels_over_256_and_ties_nothing(
    shared: Path, tmp_path: Path, capsys: Capsys
) -> None:
    """What the legacy calibrator wrote; its quantile of 0.99999 keeps the maximum, as 2042 pixels are 255."""
    legacy = read_cache(shared / PAIR / "LegacyCalibrationTable")
    got = ptq(shared, tmp_path, capsys, "5.1.0", 256, "--method", "max")
    assert bits(got.entries["data"]) == bits(legacy.entries["data"])
    assert equal_sets(legacy) == set()
    assert set(legacy.entries) == set(published(shared, "5.1.0").entries)
