# SPDX-License-Identifier: Apache-2.0
"""Samples from folders, arrays, scripts and JSON, and the preprocessing of images. Runs no model."""
