# SPDX-License-Identifier: Apache-2.0
"""INT8 with the rounding of a GPU or a DLA, and the tensor where an error is born. Not TensorRT itself."""
