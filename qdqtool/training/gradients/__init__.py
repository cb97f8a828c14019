# SPDX-License-Identifier: Apache-2.0
"""Gradients of an ONNX graph as an ONNX graph: two back ends behind one protocol, each the other's oracle."""
