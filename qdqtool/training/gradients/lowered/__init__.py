# SPDX-License-Identifier: Apache-2.0
"""What is done to each operator before onnxruntime-training's gradient builder sees it, one family per file."""
