# SPDX-License-Identifier: Apache-2.0
"""The engine after `calibrate`: data to a scale table. `tensorrt/` drives NVIDIA's calibrator. Places no pairs."""
