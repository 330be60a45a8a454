# SPDX-License-Identifier: Apache-2.0
"""What a test may change in the process, and what is put back after it."""

import os
import tempfile
from collections.abc import Iterator

import pytest

import vllm_ir as ir
from vllm_ir import _C, log, torch_wrap

# Asserts of helpers tell their values, and count under `python -O`, as those of tests do.
pytest.register_assert_rewrite(
    "toys", "processes", "fusion_graphs", "case_checks", "gated_inputs", "cached_runs"
)
import toys  # noqa: E402  # once its asserts are rewritten


def pytest_configure(config: pytest.Config) -> None:
    """Begin with empty compile caches: toys of the last session had the same names."""
    folder = tempfile.TemporaryDirectory(prefix="vllm_ir_test_caches_")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder.name
    config.add_cleanup(folder.cleanup)


@pytest.fixture(autouse=True)
def process_as_it_was() -> Iterator[None]:
    """Put back the switches, the permanent priorities, the log level and the given notices."""
    strict, invariant = _C.is_strict(), _C.is_batch_invariant()
    wrap, level, given = torch_wrap._default, log.logger.level, set(log._given)
    defaults = {name: op.get_default() for name, op in ir.IrOp.registry.items()}
    yield
    _C.set_strict(False)  # an unsupported provider in a list must not stand in the way
    for name, op in ir.IrOp.registry.items():
        # What belongs to an op that the test declared goes out of force: fingerprints of later
        # tests cover every op there is.
        providers = defaults.get(name, ["native"])
        if op.get_default() != providers:
            op.set_default(providers)
    _C.set_strict(strict)
    if _C.is_batch_invariant() != invariant:
        _C.set_batch_invariant(invariant)
    torch_wrap._default = wrap
    _C.set_ask_unwrapped(not wrap)
    log.logger.setLevel(level)
    ir.refresh_log_level()
    log._given.clear()
    log._given.update(given)


@pytest.fixture(scope="module")
def probe() -> Iterator[toys.Probe]:
    """Give a module a `toys.Probe`; out of force after it: fingerprints cover every op there is."""
    made = toys.Probe()
    yield made
    made.op.set_default(["native"])
