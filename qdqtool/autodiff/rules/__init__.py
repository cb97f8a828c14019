# SPDX-License-Identifier: Apache-2.0
"""The derivative of each operator, one function and one row of `RULES` each, a file for each family."""
