# SPDX-License-Identifier: Apache-2.0
"""What is minimised: terms as ONNX nodes behind a forward graph, the teacher's tensors, labels. Not how (the loop)."""
