# SPDX-License-Identifier: Apache-2.0
"""The ModelProto: reading, writing, index, validation, folding, edits, opsets, heads, channels. Knows no quantization.

onnx protos are the only representation: parsing and writing them gives the file's own bytes, which no other one does.
"""
