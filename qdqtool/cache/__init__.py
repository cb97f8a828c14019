# SPDX-License-Identifier: Apache-2.0
"""Calibration caches: read, write, check, merge, convert. Reads no model."""
