# SPDX-License-Identifier: Apache-2.0
"""onnxruntime: which wheel, what it can run, sessions that share weights in a mapped file, stages. Chooses no scale."""
