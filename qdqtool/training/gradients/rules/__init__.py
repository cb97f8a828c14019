# SPDX-License-Identifier: Apache-2.0
"""How each operator passes a gradient back, by family, and the means to write that down as nodes."""
