# SPDX-License-Identifier: Apache-2.0
"""Tensors without sizes or strides to look at: rejected with a reason, never a crash."""

import warnings

import pytest
import torch
from torch import Tensor
from toys import new_name

import vllm_ir as ir


def odd_tensors() -> dict[str, Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch: these layouts are in beta
        rows = [torch.ones(2, 4), torch.ones(3, 4)]
        return {
            "COO": torch.eye(4).to_sparse(),
            "CSR": torch.eye(4).to_sparse_csr(),
            "nested": torch.nested.nested_tensor(rows),
            "jagged": torch.nested.nested_tensor(rows, layout=torch.jagged),
        }


@pytest.mark.parametrize("layout", ["COO", "CSR", "nested", "jagged"])
def test_a_rule_rejects_a_tensor_without_strides(layout):
    decision = ir.ops.rms_norm.explain(odd_tensors()[layout], None, 1e-6).decisions[0]
    assert decision.provider == "vllm_c"
    assert str(decision) == 'rejected: x is not a strided tensor; needs min_dims("x", 1)'


@pytest.mark.parametrize("layout", ["COO", "CSR", "nested", "jagged"])
def test_a_memoised_callable_is_asked_about_it_each_time(layout):
    asked = []

    def native(x: Tensor) -> Tensor:
        return x * 1

    def takes_it(x: Tensor) -> bool:
        asked.append(1)
        return True

    op = ir.register_op(name=new_name("odd"))(native)
    op.register_impl("mine", supports_args=takes_it, memoise=True)(native)
    x = odd_tensors()[layout]
    with op.set_priority(["mine", "native"]):
        assert [op.explain(x).selected for _ in range(2)] == ["mine", "mine"]
    assert len(asked) == 2
