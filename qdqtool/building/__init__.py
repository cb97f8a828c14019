# SPDX-License-Identifier: Apache-2.0
"""Engines built by the TensorRT that is installed beside a GPU: what is asked of it, and the calls."""
