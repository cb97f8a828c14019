# SPDX-License-Identifier: Apache-2.0
"""The worker with a small module in the place of NVIDIA's: what it keeps of the log, which shapes it gives inputs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qdqtool.tensorrt_rtx.child import WORKER
from tests.engine.test_built_layers import line

# The classes and calls of tensorrt_rtx_bindings that the worker uses; a model is a text of what becomes of it.
FAKE = """
import enum, json, pathlib
__version__ = "1.7.1"
class ILogger:
    pass
class ErrorCode(enum.Enum):
    INVALID_NODE = 6
class ComputeCapability(enum.Enum):
    NONE = 0
    SM89 = 89
class ProfilingVerbosity(enum.Enum):
    DETAILED = 2
class Input:
    def __init__(self, name, shape): self.name, self.shape = name, shape
class Network:
    def __init__(self): self.num_layers, self.num_outputs, self.inputs = 0, 0, []
    num_inputs = property(lambda self: len(self.inputs))
    def get_input(self, place): return self.inputs[place]
class Profile:
    shapes = {}
    def set_shape(self, name, low, best, high): self.shapes[name] = (low, best, high)
class Config:
    def set_compute_capability(self, capability, place): pass
    def add_optimization_profile(self, profile): pass
class Engine(bytes):
    nbytes = property(len)
class Builder:
    def __init__(self, log): self.log = log
    def create_network(self, flags): return Network()
    def create_builder_config(self): return Config()
    def create_optimization_profile(self): return Profile()
    def build_serialized_network(self, network, config):
        if network.build is None:
            self.log.log("Severity.ERROR", "no kernel")
            return None
        self.log.log("Severity.VERBOSE", "Layers:\\n" + network.build)
        return Engine(b"engine")
class Error:
    facts = {"node": 4, "code": ErrorCode.INVALID_NODE, "desc": "why", "node_name": "n", "node_operator": "Conv",
        "local_function_stack": []}
    def __getattr__(self, name): return lambda: self.facts[name]
class OnnxParser:
    def __init__(self, network, log): self.network, self.log, self.num_errors = network, log, 0
    def get_error(self, place): return Error()
    def parse(self, data, path): return self._read(json.loads(data), path)
    def parse_from_file(self, path): return self._read(json.loads(pathlib.Path(path).read_text()), path)
    def _read(self, model, path):
        self.log.log("Severity.WARNING", f"weights beside {path}") if "elsewhere" in path else None
        self.network.inputs = [Input(name, tuple(shape)) for name, shape in model["inputs"].items()]
        self.network.num_layers, self.network.num_outputs = 3, model.get("outputs", 1)
        self.network.build = model.get("build")
        for severity, text in model.get("log", []):
            self.log.log(f"Severity.{severity}", text)
        if model.get("refused"):
            self.log.log("Severity.ERROR", 'ModelImporter.cpp:140: While parsing node number 4 [Conv -> "y"]:')
            self.num_errors = 1
        print("noise on stdout")
        return not model.get("refused")
"""


def work(place: Path, model: dict[str, Any], **job: Any) -> dict[str, Any]:
    """What the worker gives for a model of the fake library."""
    modules = place / "modules"
    modules.mkdir()
    (modules / "tensorrt_rtx_bindings.py").write_text(FAKE)
    (place / "m").write_text(json.dumps({"inputs": {"x": [1, 3]}, **model}))
    whole = {"action": "parse", "model": str(place / "m"), "sm": ["89"], "shapes": {}, **job}
    done = subprocess.run(
        [sys.executable, str(WORKER)],
        input=json.dumps({**whole, "result": str(place / "result")}).encode(),
        env={"PYTHONPATH": str(modules), "SYSTEMROOT": "C:\\Windows"},
        stdout=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0
    result: dict[str, Any] = json.loads((place / "result").read_text())
    return result


def test_a_network_without_outputs_is_not_accepted(tmp_path: Path) -> None:
    assert work(tmp_path, {"outputs": 0})["accepted"] is False


def test_a_refusal_has_code_node_and_the_first_output_of_its_node(tmp_path: Path) -> None:
    done = work(tmp_path, {"refused": True})
    assert done["accepted"] is False and done["errors"] == [
        {"code": "INVALID_NODE", "text": "why", "node": "n", "operator": "Conv", "tensor": "y", "stack": []}
    ]


def test_a_warning_has_the_node_that_is_parsed(tmp_path: Path) -> None:
    log = [
        ("WARNING", "before"),
        ("VERBOSE", "Static check for parsing node: a [Conv]"),
        ("VERBOSE", "Parsing node: b [QuantizeLinear]"),
        ("INFO", "something"),
        ("WARNING", "it takes INT8"),
    ]
    assert work(tmp_path, {"log": log})["warnings"] == [
        {"node": "", "text": "before"},
        {"node": "b [QuantizeLinear]", "text": "it takes INT8"},
    ]


def test_messages_without_end_are_cut(tmp_path: Path) -> None:
    done = work(tmp_path, {"log": [("WARNING", "w" * 9000)] * 300})
    assert len(done["warnings"]) == 200 and len(done["warnings"][0]["text"]) == 4000


def test_weights_are_looked_for_beside_the_model_that_it_was(tmp_path: Path) -> None:
    (warning,) = work(tmp_path, {}, folder="/elsewhere")["warnings"]
    assert Path(warning["text"].removeprefix("weights beside ")) == Path("/elsewhere/model.onnx")


def test_a_build_gives_layers_and_writes_the_engine(tmp_path: Path) -> None:
    done = work(tmp_path, {"build": line()}, action="build", engine=str(tmp_path / "e"))
    assert line() in done["build"]["layers"] and done["build"]["engine_bytes"] == 6
    assert (tmp_path / "e").read_bytes() == b"engine"


def test_a_build_that_fails_gives_the_errors_behind_the_parser_s(tmp_path: Path) -> None:
    done = work(tmp_path, {"log": [("ERROR", "of the parser")]}, action="build", engine=str(tmp_path / "e"))
    assert done["build"]["failed"] == ["no kernel"] and not (tmp_path / "e").exists()


@pytest.mark.parametrize(
    ("shape", "asked", "expected"),
    [
        ([1, 3], {}, {}),
        ([-1, 3, -1, -1], {}, {"x": [[1, 3, 320, 320]] * 3}),
        ([-1, -1], {}, {"x": [[1, 64]] * 3}),
        ([-1, 3], {"x": [[1, 3], [2, 3], [4, 3]]}, {"x": [[1, 3], [2, 3], [4, 3]]}),
    ],
)
def test_shapes_of_inputs_with_free_sides(
    tmp_path: Path, shape: list[int], asked: dict[str, Any], expected: dict[str, Any]
) -> None:
    done = work(tmp_path, {"inputs": {"x": shape}, "build": line()}, action="build", shapes=asked)
    assert done["build"]["shapes"] == expected


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ({"sm": ["99"]}, "SM99 is not known to this version, which builds for 89"),
        ({"shapes": {"z": [[1]] * 3}}, "has no input z; its inputs are x"),
        ({"shapes": {"x": [[1, 4]] * 3}}, "input x is 1x3, and the shape 1x4 does not fit it"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path: Path, job: dict[str, Any], expected: str) -> None:
    assert work(tmp_path, {"build": line()}, action="build", **job) == {"refused": expected}
