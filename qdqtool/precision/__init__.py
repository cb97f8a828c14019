# SPDX-License-Identifier: Apache-2.0
"""Element types of a strongly typed network: which tensors are FP16, BF16 or FP32. Not what is INT8 (`match/`)."""
