# SPDX-License-Identifier: Apache-2.0
"""The bridge between ONNX and TensorRT's two INT8 worlds: Q/DQ graphs and calibration caches."""

__version__ = "0.1.0"
