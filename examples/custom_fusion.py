# SPDX-License-Identifier: Apache-2.0
"""A fusion of one's own: a norm and a product with a vector become one op.

The op is declared here, as an out-of-tree package would. `python examples/custom_fusion.py`
compiles a small model, prints what became of each call, and compares with the eager model.
"""

import torch
from torch import Tensor

import vllm_ir as ir
from vllm_ir.compile.fusion import KeywordArg, call, register_fusion


@ir.register_op
def example_norm_scale(x: Tensor, weight: Tensor | None, epsilon: float, factor: Tensor) -> Tensor:
    """Return `rms_norm(x, weight, epsilon) * factor`, rounded as the two are."""
    return ir.ops.rms_norm(x, weight, epsilon) * factor


@example_norm_scale.register_impl("example")
def norm_scale(x: Tensor, weight: Tensor | None, epsilon: float, factor: Tensor) -> Tensor:
    """Stand for a kernel that does both in one pass over memory."""
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, epsilon) * factor


def why_not(match) -> str:
    """Return why a product is left alone: the op takes a vector of x's dtype."""
    x, factor = match.values["x"], match.values["factor"]
    vector = isinstance(factor, Tensor) and factor.dim() == 1 and factor.dtype is x.dtype
    return "" if vector else "the factor is no vector of x's dtype"


# What stands in the graph: any epsilon, any weight, the factor on either side.
norm = call(ir.ops.rms_norm, KeywordArg("x"), KeywordArg("weight"), KeywordArg("epsilon"))
factor = KeywordArg("factor")
products = [call(torch.ops.aten.mul.Tensor, *sides) for sides in ((norm, factor), (factor, norm))]


@register_fusion("example_norm_scale", *products, check=why_not)
def fuse(x, weight, epsilon, factor):
    """Take the place of the two calls."""
    return example_norm_scale(x, weight, epsilon, factor)


def model(x: Tensor, weight: Tensor, factor: Tensor) -> Tensor:
    """Three products; the last one is by a number."""
    x = ir.ops.rms_norm(x, weight, 1e-6) * factor
    x = factor * ir.ops.rms_norm(torch.relu(x), None, 1e-5)
    return ir.ops.rms_norm(x, weight, 1e-6) * 2


def main() -> None:
    """Compile, compare, print."""
    torch.manual_seed(0)
    args = torch.randn(4, 64), torch.randn(64), torch.randn(64)
    ir.ops.example_norm_scale.set_default(["example"])
    compiled = ir.compile(model)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*args), model(*args))
    print(ir.compile.explain(compiled))


if __name__ == "__main__":
    main()
