# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for tests of those who have neither TensorRT nor a GPU. No verb uses anything from here."""
