# SPDX-License-Identifier: Apache-2.0
"""Operators that say something to the passes behind them, and compute nothing.

`fresh` says that an activation is not a graph input, and keeps it from being one: `donated` says
that a call gave all its activations away. Where one of them is a new value, a copy of a buffer say,
Inductor may take that copy for needless before ops are lowered: the call then seems to give the
buffer itself away. So a new value that is donated beside graph inputs goes through `fresh`, which
nobody looks into and `collect` takes out again.

`realized` says that a value is to be computed here (see `realize`).
"""

from typing import Any

import torch
from torch import Tensor

_Library: Any = torch.library.Library  # torch gives it no types
_library = _Library("vllm_ir_marks", "FRAGMENT")
_library.define("fresh(Tensor x) -> Tensor")


def _copy(x: Tensor) -> Tensor:
    return x.clone()


_library.impl("fresh", _copy, "CompositeExplicitAutograd")
torch.library.register_fake("vllm_ir_marks::fresh", _copy, lib=_library)

_library.define("realized(Tensor(a) x) -> Tensor(a)")
_library.impl("realized", torch.ops.aten.alias.default, "CompositeExplicitAutograd")
torch.library.register_fake("vllm_ir_marks::realized", torch.ops.aten.alias.default, lib=_library)

REALIZED: Any = torch.ops.vllm_ir_marks.realized.default
FRESH: Any = torch.ops.vllm_ir_marks.fresh.default
