# SPDX-License-Identifier: Apache-2.0
"""Gradients of an ONNX graph as an ONNX graph, with two back ends. Trains nothing.

Both back ends run `reverse_mode.py` with one table of derivatives. `ort-training` asks a kernel such as ConvGrad before
a rule where that is faster (`rules/ort_kernels.py`). onnxruntime-training's own gradient builder is not used: it is
silently wrong about some operators, takes gradients of others as functions that see no attributes, and was not faster.
"""
