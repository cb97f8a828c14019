# SPDX-License-Identifier: Apache-2.0
"""What is minimized: terms as ONNX nodes after a forward graph, the teacher's tensors, labels. Not how (the loop)."""
