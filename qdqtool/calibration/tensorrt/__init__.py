# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own calibrator, driven where TensorRT is installed: engine, buffers, readers, parts."""
