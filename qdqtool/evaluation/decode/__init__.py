# SPDX-License-Identifier: Apache-2.0
"""Outputs of detectors to boxes, a file for each family, and the choice among them by the graph."""
