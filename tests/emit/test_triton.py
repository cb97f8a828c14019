# SPDX-License-Identifier: Apache-2.0
"""Triton's configuration: read back by protobuf's own text format, into messages of the documented fields."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from qdqtool.emit.job import EmitJob, Tensor
from qdqtool.emit.triton import write_triton
from qdqtool.errors import QdqError
from tests.emit.jobs import FLOAT, job_of

Field = descriptor_pb2.FieldDescriptorProto
KINDS = {"string": Field.TYPE_STRING, "int": Field.TYPE_INT64}
TYPES = [
    "INVALID",
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "STRING",
    "BF16",
]
# Message -> its fields that are used here, as triton-inference-server/common protobuf/model_config.proto names them;
# "*" is repeated. A map is read as what it is on the wire: a repeated message of key and value.
MESSAGES = {
    "Entry": "key:string value:string",
    "Accelerator": "name:string parameters:Entry*",
    "Accelerators": "gpu_execution_accelerator:Accelerator* cpu_execution_accelerator:Accelerator*",
    "Optimization": "execution_accelerators:Accelerators",
    "Group": "name:string count:int kind:Kind",
    "Value": "name:string data_type:DataType dims:int*",
    "Config": "name:string platform:string backend:string max_batch_size:int input:Value* output:Value* "
    "instance_group:Group* optimization:Optimization default_model_filename:string",
}
ENUMS = {"DataType": [f"TYPE_{name}" for name in TYPES], "Kind": ["KIND_AUTO", "KIND_GPU", "KIND_CPU"]}


def config_class() -> Any:
    """The class of Config."""
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    for name, values in ENUMS.items():
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, word in enumerate(fields.split(), 1):
            field, kind = word.rstrip("*").split(":")
            label = Field.LABEL_REPEATED if word.endswith("*") else Field.LABEL_OPTIONAL
            made = message.field.add(name=field, number=number, label=label)
            made.type = KINDS.get(kind, Field.TYPE_ENUM if kind in ENUMS else Field.TYPE_MESSAGE)
            if kind not in KINDS:
                made.type_name = f".t.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Config"))


CONFIG = config_class()


def config_of(job: EmitJob) -> Any:
    return text_format.Parse(write_triton(job).text, CONFIG())


def parameters_of(job: EmitJob) -> dict[str, str]:
    (accelerator,) = config_of(job).optimization.execution_accelerators.gpu_execution_accelerator
    assert accelerator.name == "tensorrt"
    found = {entry.key: entry.value for entry in accelerator.parameters}
    assert len(found) == len(accelerator.parameters)
    return found


def test_onnxruntime_with_the_accelerator_reads_our_cache() -> None:
    config = config_of(job_of(model="../a/m.onnx", cache="../a/m.cache"))
    assert (config.name, config.platform, config.default_model_filename) == ("m", "onnxruntime_onnx", "m.onnx")
    found = parameters_of(job_of(cache="../a/m.cache"))
    assert found["precision_mode"] == "INT8"
    assert found["int8_calibration_table_name"] == "m.cache"
    assert found["int8_use_native_calibration_table"] == "1"
    assert "trt_dla_enable" not in found


def test_the_dla_is_enabled_and_its_limit_told() -> None:
    job = job_of(target="dla")
    found = parameters_of(job)
    assert (found["trt_dla_enable"], found["trt_dla_core"]) == ("1", "0")
    assert any("cannot" in w or " 2 layers out of" in w for w in write_triton(job).warnings)
    assert write_triton(job_of(target="gpu")).warnings == ()


def test_fixed_sizes_stay_as_they_are() -> None:
    config = config_of(job_of())
    assert config.max_batch_size == 0
    assert list(config.input[0].dims) == [1, 3, 240, 320] and list(config.output[0].dims) == [1, 10]


def test_a_free_first_axis_everywhere_is_the_batch() -> None:
    job = job_of(
        batch=8,
        inputs=(Tensor("x", FLOAT, (None, 3, None, 8)),),
        outputs=(Tensor("y", FLOAT, (None, 10)),),
    )
    config = config_of(job)
    assert config.max_batch_size == 8
    assert list(config.input[0].dims) == [3, -1, 8] and list(config.output[0].dims) == [10]


def test_one_tensor_without_a_batch_and_there_is_none() -> None:
    job = job_of(batch=8, inputs=(Tensor("x", FLOAT, (None, 3)),), outputs=(Tensor("y", FLOAT, (7, 4)),))
    config = config_of(job)
    assert config.max_batch_size == 0
    assert list(config.input[0].dims) == [-1, 3] and list(config.output[0].dims) == [7, 4]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("FLOAT", "FP32"),
        ("FLOAT16", "FP16"),
        ("INT64", "INT64"),
        ("BOOL", "BOOL"),
        ("UINT8", "UINT8"),
        ("DOUBLE", "FP64"),
    ],
)
def test_types(kind: str, name: str) -> None:
    job = job_of(inputs=(Tensor("x", getattr(onnx.TensorProto, kind), (1, 2)),))
    assert config_of(job).input[0].data_type == TYPES.index(name)


@pytest.mark.parametrize("tensor", [Tensor("y", FLOAT, None), Tensor("y", onnx.TensorProto.COMPLEX64, (1,))])
def test_what_triton_cannot_be_told_is_refused(tensor: Tensor) -> None:
    with pytest.raises(QdqError, match=r"y: m\.onnx "):
        write_triton(job_of(outputs=(tensor,)))


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "a\x01b", "é/日本:0", "a # b", "a'b"])
def test_names_come_back_as_they_were(name: str) -> None:
    job = job_of(stem=name, inputs=(Tensor(name, FLOAT, (1, 2)),), cache=name.replace("/", ""))
    config = config_of(job)
    assert config.name == config.input[0].name == name
    assert parameters_of(job)["int8_calibration_table_name"] == name.replace("/", "")


def test_names_that_onnxruntime_cuts_are_warned_about() -> None:
    job = job_of(scales={"Relu:0": np.float32(1), "x": np.float32(1)})
    assert any(re.search("misses 1 scales, .* Relu:0", warning) for warning in write_triton(job).warnings)


def test_eleven_is_refused() -> None:
    with pytest.raises(QdqError, match=r"11.0.0.* no calibration caches"):
        write_triton(job_of("11.0.0"))
