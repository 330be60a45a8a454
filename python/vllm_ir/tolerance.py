# SPDX-License-Identifier: Apache-2.0
"""How far an implementation may be from native, by dtype."""

from typing import NamedTuple

import torch


class Tolerance(NamedTuple):
    """Passed to torch.testing.assert_close as it is."""

    atol: float
    rtol: float


# float types: a few units in the last place of a sum of some thousand terms; 8-bit types: one step.
DEFAULTS: dict[torch.dtype, Tolerance] = {
    torch.float64: Tolerance(1e-8, 1e-8),
    torch.float32: Tolerance(1e-5, 1.3e-6),
    torch.float16: Tolerance(1e-3, 1e-3),
    torch.bfloat16: Tolerance(1e-3, 1.6e-2),
    torch.float8_e4m3fn: Tolerance(1e-1, 1e-1),
    torch.float8_e5m2: Tolerance(2e-1, 2e-1),
    torch.int8: Tolerance(1, 0),
}
