# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a model for TensorRT's INT8, found before an engine is built; and the repairs that are safe."""
