# SPDX-License-Identifier: Apache-2.0
"""The logger `vllm_ir`: its level, one fallback handler, and notices that are given once.

The application's logging stands: records propagate to its handlers, and ours keeps silent as soon
as there is another one. It looks when a record arrives, so the order of set-up doesn't matter.
"""

import logging
import sys
import threading
from collections.abc import Hashable

from vllm_ir import envs

logger = logging.getLogger("vllm_ir")

_given: set[Hashable] = set()
_lock = threading.Lock()


class _FallbackHandler(logging.Handler):
    """Writes to the stderr of the moment when the application has no handler for a record."""

    def emit(self, record: logging.LogRecord) -> None:
        if self._application_has_a_handler():
            return
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)

    def _application_has_a_handler(self) -> bool:
        own = [h for h in logger.handlers if not isinstance(h, _FallbackHandler)]
        return bool(own) or (logger.propagate and bool(logging.getLogger().handlers))


def configure() -> None:
    """Set the level, add the fallback handler, point out variables that have no meaning.

    A level in the environment goes first, then one that the application has set, then INFO.
    Calling it again changes nothing more.

    Raises:
        IrValueError: The environment names a level that doesn't exist.
    """
    level = envs.explicit_logging_level()
    if level is not None:
        logger.setLevel(level)
    elif logger.level == logging.NOTSET:
        logger.setLevel(envs.logging_level())
    if not any(isinstance(handler, _FallbackHandler) for handler in logger.handlers):
        handler = _FallbackHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
    for name, text in envs.unknown().items():
        warning_once(("environment", name), "%s", text)


def warning_once(key: Hashable, message: str, *args: object) -> bool:
    """Log a warning the first time that `key` is seen in this process.

    Args:
        key: What the notice is about: an op and a cause, say `("rms_norm", "priority not set")`.
        message: The text, with `args` put in as `logging` does.
        *args: Values for `message`.

    Returns:
        Whether this call gave the notice.
    """
    with _lock:
        if key in _given:
            return False
        _given.add(key)
    logger.warning(message, *args, stacklevel=2)
    return True


def forget_once(key: Hashable | None = None) -> None:
    """Let a notice be given again: the one of `key`, or all of them. For tests."""
    with _lock:
        if key is None:
            _given.clear()
        else:
            _given.discard(key)
