# SPDX-License-Identifier: Apache-2.0
"""The command line: parses arguments, calls one verb, prints text or JSON. No logic."""
