# SPDX-License-Identifier: Apache-2.0
"""The HTML page of `report`: boxes of the graph, tables, drawings, style and script. Runs and judges no model."""
