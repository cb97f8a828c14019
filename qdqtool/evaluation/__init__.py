# SPDX-License-Identifier: Apache-2.0
"""A model by its task: decoders, labels, metrics, intervals, pictures. Calibrates nothing."""
