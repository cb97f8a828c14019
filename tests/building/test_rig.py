# SPDX-License-Identifier: Apache-2.0
"""Every class, flag and enum that `build` names, asked of NVIDIA's own Python bindings of 10.13 and 11.4 in the rig.

The bindings are real, the libraries below them are stubs: names are checked, nothing is built.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
from pathlib import Path

import pytest

from qdqtool.building.recipe import _FLAGS

HERE = Path(__file__).resolve().parent
WEAK = ("FP16", "BF16", "INT8", "OBEY_PRECISION_CONSTRAINTS", "PREFER_PRECISION_CONSTRAINTS")
IN_BOTH = (
    "BuilderFlag.TF32",
    "BuilderFlag.GPU_FALLBACK",
    "MemoryPoolType.WORKSPACE",
    "DeviceType.DLA",
    "LayerInformationFormat.JSON",
    "ProfilingVerbosity.DETAILED",
    "NetworkDefinitionCreationFlag.STRONGLY_TYPED",
    "Builder.build_serialized_network",
    "Builder.num_DLA_cores",
    "Builder.create_builder_config",
    "Builder.create_optimization_profile",
    "IBuilderConfig.set_flag",
    "IBuilderConfig.clear_flag",
    "IBuilderConfig.get_flag",
    "IBuilderConfig.DLA_core",
    "IBuilderConfig.default_device_type",
    "IBuilderConfig.set_memory_pool_limit",
    "IBuilderConfig.create_timing_cache",
    "IBuilderConfig.set_timing_cache",
    "IBuilderConfig.get_timing_cache",
    "IBuilderConfig.add_optimization_profile",
    "ITimingCache.combine",
    "ITimingCache.serialize",
    "IOptimizationProfile.set_shape",
    "INetworkDefinition.num_layers",
    "INetworkDefinition.get_layer",
    "INetworkDefinition.get_input",
    "ILayer.num_outputs",
    "ILayer.get_output",
    "OnnxParser.parse_from_file",
    "Runtime.deserialize_cuda_engine",
    "ICudaEngine.create_engine_inspector",
    "EngineInspector.get_engine_information",
    "float16",
    "float32",
)
UP_TO_10 = (
    *(f"BuilderFlag.{flag}" for flag in WEAK[:4]),
    "IInt8EntropyCalibrator2",
    "CalibrationAlgoType.ENTROPY_CALIBRATION_2",
    "IBuilderConfig.int8_calibrator",
    "IBuilderConfig.set_calibration_profile",
    "ILayer.precision",
    "ILayer.set_output_type",
)
PREFERRED = "BuilderFlag.PREFER_PRECISION_CONSTRAINTS"  # some builds of 11 still have it: it is never asked for there


@functools.cache
def names_in(major: str) -> dict[str, object]:
    """What the bindings of a major version have."""
    folder = os.environ.get("QDQTOOL_TRT_RIG")
    run = Path(folder or "", major, "run").absolute()
    if not folder or not run.is_file():
        pytest.skip(f"no rig of TensorRT {major}: make rig, then set QDQTOOL_TRT_RIG to its folder")
    command = [run, "python", HERE / "rig_names.py", *IN_BOTH, *UP_TO_10, PREFERRED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.shared
@pytest.mark.parametrize(("major", "version"), [("10", "10.13."), ("11", "11.4.")])
def test_names_of_every_version(shared: Path, major: str, version: str) -> None:
    found = names_in(major)
    assert str(found["version"]).startswith(version)
    assert [name for name in IN_BOTH if not found[name]] == []


@pytest.mark.shared
def test_names_that_went_with_11(shared: Path) -> None:
    assert [name for name in (*UP_TO_10, PREFERRED) if not names_in("10")[name]] == []
    still = [name for name in UP_TO_10 if names_in("11")[name]]
    assert not {"IInt8EntropyCalibrator2", "BuilderFlag.INT8", "BuilderFlag.FP16", "BuilderFlag.BF16"} & {*still}


def test_every_flag_of_a_recipe_is_asked_for() -> None:
    asked = {name.removeprefix("BuilderFlag.") for name in (*IN_BOTH, *UP_TO_10) if name.startswith("BuilderFlag.")}
    assert set().union(*_FLAGS.values()) <= asked
