# SPDX-License-Identifier: Apache-2.0
"""Weight edits that make a model quantize better, one edit per file. What is edited was decided before."""
