# SPDX-License-Identifier: Apache-2.0
"""What costs accuracy: scales by what consumers lose, loss at the outputs, operators that stay in float.

One reference (`OutputReference`), one loss (`measures.channel_loss`), one search (`ranked_search`). No pair is placed
here. The package is not called `sensitivity`: that name would hide the public function `qdqtool.sensitivity`.
"""
