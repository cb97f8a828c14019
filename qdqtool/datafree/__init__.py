# SPDX-License-Identifier: Apache-2.0
"""Ranges from the model alone: statistics of BatchNormalization, and moments carried forward. Reads no data."""
