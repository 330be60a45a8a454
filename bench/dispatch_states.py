# SPDX-License-Identifier: Apache-2.0
"""States of the process that a call may meet, each as a context that is left without a trace."""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

import vllm_ir as ir


class NoFunctionMode(TorchFunctionMode):
    """A torch-function mode that changes nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def grad_mode() -> AbstractContextManager[None]:
    """Leave the inference mode of the bench."""
    return torch.inference_mode(False)


@contextmanager
def default_device() -> Iterator[None]:
    """A process-wide default device, as servers set it."""
    torch.set_default_device("cpu")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def debug_log() -> Iterator[None]:
    """The package's logger at DEBUG, into nothing."""
    logger, sink = logging.getLogger("vllm_ir"), logging.NullHandler()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(sink)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    ir.refresh_log_level()
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(sink)
        logger.propagate = propagate
        ir.refresh_log_level()
