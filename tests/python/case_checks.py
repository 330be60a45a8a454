# SPDX-License-Identifier: Apache-2.0
"""What "right" means in the tests of failures that users met: native on dense copies."""

import torch

from vllm_ir.testing import Memory, refusal


def run(op, provider, args):
    """Call with the provider first in the list; the inputs must survive. Results as a tuple."""
    before = Memory(args)
    with op.set_priority([provider]):
        got = op(*args)
    assert not before.changed()
    return got if isinstance(got, tuple) else (got,)


def right(op, args):
    dense = [a.contiguous().clone() if isinstance(a, torch.Tensor) else a for a in args]
    want = op.impls["native"].impl_fn(*dense)
    return want if isinstance(want, tuple) else (want,)


def assert_right(op, provider, args):
    """The provider's results, or native's where it refuses, are right."""
    for got, want in zip(run(op, provider, args), right(op, args), strict=True):
        assert (got.dtype, got.shape, got.device) == (want.dtype, want.shape, want.device)
        atol, rtol = op.get_tolerance(got.dtype)
        torch.testing.assert_close(got, want, atol=atol, rtol=rtol, equal_nan=True)
    return refusal(op, provider, *args)
