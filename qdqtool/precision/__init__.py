# SPDX-License-Identifier: Apache-2.0
"""Element types of a strongly typed network: which tensors are FP16, BF16 or FP32. Not what is INT8 (`match/`).

Which operators are FP32: what they are (`fixed_types.py`), their values (`required.py`, by rules/amp.toml), the digits
of outputs (`output_tail.py`), the same INT8 codes (`int8_paths.py`, `between_pairs.py`), fewer casts (`cast_cut.py`).
Plans, counts and edits read the model in FP32 (`widen.py`); judges run it with its roundings (`rounded.py`). Types are
put in and taken out by `casts.py`, with a record in the metadata (`assignment.py`).
"""
