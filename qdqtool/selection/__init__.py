# SPDX-License-Identifier: Apache-2.0
"""`--method auto`: the scale of a tensor by what its consumers lose. Keeps no operator in float."""
