# SPDX-License-Identifier: Apache-2.0
"""What a test may change in the process, and what is put back after it."""

from collections.abc import Iterator

import pytest

import vllm_ir as ir
from vllm_ir import _C, log, torch_wrap

# Asserts of helpers tell their values, and count under `python -O`, as those of tests do.
pytest.register_assert_rewrite(
    "toys", "processes", "fusion_graphs", "case_checks", "gated_inputs", "cached_runs"
)


@pytest.fixture(autouse=True)
def process_as_it_was() -> Iterator[None]:
    """Put back the switches, the permanent priorities, the log level and the given notices."""
    strict, invariant = _C.is_strict(), _C.is_batch_invariant()
    wrap, level, given = torch_wrap._default, log.logger.level, set(log._given)
    defaults = {name: op.get_default() for name, op in ir.IrOp.registry.items()}
    yield
    _C.set_strict(False)  # an unsupported provider in a list must not stand in the way
    for name, providers in defaults.items():
        if ir.IrOp.registry[name].get_default() != providers:
            ir.IrOp.registry[name].set_default(providers)
    _C.set_strict(strict)
    if _C.is_batch_invariant() != invariant:
        _C.set_batch_invariant(invariant)
    torch_wrap._default = wrap
    _C.set_ask_unwrapped(not wrap)
    log.logger.setLevel(level)
    ir.refresh_log_level()
    log._given.clear()
    log._given.update(given)
