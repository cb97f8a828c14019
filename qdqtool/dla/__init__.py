# SPDX-License-Identifier: Apache-2.0
"""What a DLA runs, by version and platform: limits, subgraphs, fallbacks. Places no pairs."""
