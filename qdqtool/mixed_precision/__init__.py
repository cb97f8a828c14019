# SPDX-License-Identifier: Apache-2.0
"""What operators in INT8 lose at the outputs, and which of them stay in float. No pair is placed here.

The package is not called `sensitivity`: a subpackage of that name would hide the public function `qdqtool.sensitivity`.
"""
