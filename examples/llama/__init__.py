# SPDX-License-Identifier: Apache-2.0
"""A small Llama for the examples; begin with `model`."""
