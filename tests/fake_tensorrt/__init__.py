# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the module `tensorrt` that behaves like it where a calibrator is concerned. No figure is TensorRT's.

It parses ONNX, calls the calibrator in TensorRT's order, reads the host pointers it gets, runs the model in onnxruntime
with every tensor as an output, and writes a cache in TensorRT's form. docs/testing.md says what it shows and what not.
"""

from tests.fake_tensorrt.install import installed
from tests.fake_tensorrt.state import Behavior, Callbacks, Fake

__all__ = ["Behavior", "Callbacks", "Fake", "installed"]
