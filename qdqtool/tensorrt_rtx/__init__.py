# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's parser and compiler of TensorRT for RTX on a CPU, in a child process; results kept by content.

The library is not imported here, and nothing says how fast an engine is.
"""
