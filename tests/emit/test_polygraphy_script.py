# SPDX-License-Identifier: Apache-2.0
"""The network script: loaded by Polygraphy itself, run on a network that is a stand-in for TensorRT's."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qdqtool.emit.job import EmitJob
from qdqtool.emit.polygraphy_script import write_polygraphy_script
from qdqtool.errors import QdqError
from tests.emit.jobs import VERSIONS, job_of, layer

FP32, FP16, INT32 = "float32", "float16", "int32"


class SeenLayer:
    """What the script touches of an ILayer."""

    def __init__(self, name: str, *outputs: tuple[str, str]) -> None:
        self.name, self.precision, self.types = name, None, dict[int, str]()
        self.tensors = [SimpleNamespace(name=n, dtype=d, dynamic_range=None) for n, d in outputs]
        self.num_outputs = len(self.tensors)

    def get_output(self, index: int) -> Any:
        return self.tensors[index]

    def set_output_type(self, index: int, kind: str) -> None:
        self.types[index] = kind


class SeenNetwork:
    """What the script touches of an INetworkDefinition."""

    def __init__(self, *layers: SeenLayer) -> None:
        self.layers, self.num_layers, self.num_inputs = layers, len(layers), 1
        self.image = SimpleNamespace(name="x", dtype=FP32, dynamic_range=None)

    def get_input(self, index: int) -> Any:
        return [self.image][index]

    def get_layer(self, index: int) -> SeenLayer:
        return self.layers[index]


def play(
    job: EmitJob, network: SeenNetwork, folder: Path, monkeypatch: pytest.MonkeyPatch, trt: str = "8.5.2.2"
) -> None:
    """Let Polygraphy load the script and call it, as --trt-npps does."""
    from polygraphy.backend.common import invoke_from_script

    fake = SimpleNamespace(__version__=trt, float16=FP16, float32=FP32, int32=INT32)
    monkeypatch.setitem(sys.modules, "tensorrt", fake)
    script = folder / "s.py"
    script.write_text(write_polygraphy_script(job).text)
    invoke_from_script(str(script), "postprocess", network=network)


def test_layers_and_tensors_get_what_they_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    head, stem = SeenLayer("head", ("head_out", FP32)), SeenLayer("stem", ("stem_out", FP32))
    other = SeenLayer("other", ("other_out", FP32))
    network = SeenNetwork(stem, head, other)
    play(job_of(), network, tmp_path, monkeypatch)
    assert (head.precision, head.types) == (FP32, {0: FP32})
    assert (stem.precision, stem.types) == (FP16, {})
    assert (other.precision, other.types) == (None, {})
    assert network.image.dynamic_range == (-63.5, 63.5)
    low, high = head.tensors[0].dynamic_range
    assert low == -high and np.float32(high / 127).tobytes() == np.float32(0.1).tobytes()
    assert stem.tensors[0].dynamic_range is None
    assert "network, such as" not in capsys.readouterr().err


def test_a_layer_without_a_name_is_found_by_what_it_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = SeenLayer("(Unnamed SeenLayer* 3) [Convolution]", ("a,b:0", FP32))
    lost = layer("", node="a,b:0", outputs=("a,b:0",), precision="fp32", unnamed="its name")
    play(job_of(layers=(lost,)), SeenNetwork(found), tmp_path, monkeypatch)
    assert found.precision == FP32


def test_a_node_that_became_two_layers_has_both_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    product, bias = SeenLayer("head", ("(Unnamed) out", FP32)), SeenLayer("head_1", ("head_out", FP32))
    play(job_of(), SeenNetwork(product, bias), tmp_path, monkeypatch)
    assert product.precision == bias.precision == FP32
    assert bias.types == {0: FP32}


def test_layers_of_integers_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = SeenLayer("head", ("head_out", INT32))
    play(job_of(), SeenNetwork(shapes), tmp_path, monkeypatch)
    assert (shapes.precision, shapes.types) == (None, {})


def test_it_says_what_the_network_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    play(job_of(), SeenNetwork(SeenLayer("stem", ("stem_out", FP32))), tmp_path, monkeypatch)
    said = capsys.readouterr().err
    assert re.search("1 of 2 ranges .* head_out", said)
    assert re.search("1 of 2 float tensors .* head_out", said)


def test_before_constraints_of_precisions_the_builder_is_told_to_be_strict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polygraphy.backend.common import invoke_from_script

    flags: list[str] = []
    fake = SimpleNamespace(__version__="8.0.1.6", BuilderFlag=SimpleNamespace(STRICT_TYPES="strict"))
    monkeypatch.setitem(sys.modules, "tensorrt", fake)
    script = tmp_path / "s.py"
    script.write_text(write_polygraphy_script(job_of("8.0.1")).text)
    config = SimpleNamespace(set_flag=flags.append)
    invoke_from_script(str(script), "postprocess_config", builder=None, network=None, config=config)
    assert flags == ["strict"] and "--trt-config-postprocess-script m.polygraphy.py" in script.read_text()
    assert "STRICT_TYPES" not in write_polygraphy_script(job_of("8.2.1")).text


def test_the_command_keeps_the_engine() -> None:
    for version in VERSIONS:
        assert "--save-engine m.engine\n" in write_polygraphy_script(job_of(version)).text


def test_it_refuses_tensorrt_11(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="Q/DQ"):
        play(job_of(), SeenNetwork(), tmp_path, monkeypatch, trt="11.4.1")
    with pytest.raises(QdqError, match=r"11.0.0.* no calibration caches"):
        write_polygraphy_script(job_of("11.0.0"))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("target", ["gpu", "dla"])
def test_it_is_python_that_older_boards_read(version: str, target: str) -> None:
    text = write_polygraphy_script(job_of(version, target)).text
    tree = ast.parse(text, feature_version=(3, 7))
    usage = ast.get_docstring(tree) or ""
    assert ("--use-dla" in usage) is (target == "dla")
    assert ("--precision-constraints obey" in usage) is (version not in ("7.1.3", "8.0.1"))
    assert f"TensorRT {version}" in usage


@pytest.mark.parametrize("name", ['a"""b', "a\\", "a'b\n", "é", "{x}", "%s"])
def test_no_name_breaks_out_of_it(name: str) -> None:
    job = job_of(scales={name: np.float32(1)}, layers=(layer(name),), model=f"{name}.onnx", stem=name)
    tree = ast.parse(write_polygraphy_script(job).text)
    tables = {n.targets[0].id: ast.literal_eval(n.value) for n in tree.body if isinstance(n, ast.Assign)}  # type: ignore[attr-defined]
    assert tables["RANGES"] == {name: 127.0}
    assert tables["LAYERS"] == {name: "fp16"} and tables["OUTPUTS"] == {f"{name}_out": "fp16"}


def test_polygraphy_knows_the_options_of_the_usage() -> None:
    import polygraphy

    folder = Path(polygraphy.__file__).parent / "tools" / "args"
    sources = "".join(path.read_text() for path in folder.rglob("*.py"))
    texts = (write_polygraphy_script(job_of(version, "dla")).text for version in ("8.0.1", "8.5.2"))
    usage = " ".join(ast.get_docstring(ast.parse(text)) or "" for text in texts)
    options = [word for word in usage.split() if word.startswith("--")]
    assert len(set(options)) == 10
    assert [
        option for option in options if f'"{option}"' not in sources and option not in ("--trt", "--save-engine")
    ] == []


def test_the_usage_names_the_files() -> None:
    job = job_of(model="a dir/m.onnx", cache="c.cache", stem="c")
    usage = ast.get_docstring(ast.parse(write_polygraphy_script(job).text)) or ""
    assert "polygraphy run 'a dir/m.onnx' --trt" in usage
    assert (
        usage.endswith("--calibration-cache c.cache --trt-npps c.polygraphy.py --save-engine c.engine")
        and "MODEL" not in usage
    )
