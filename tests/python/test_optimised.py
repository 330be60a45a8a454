# SPDX-License-Identifier: Apache-2.0
"""Checks are checks, not assert statements: the configuration suite passes under `python -O`."""

from pathlib import Path

import pytest
from processes import run_python

HERE = Path(__file__).parent
SUITES = ["envs", "priority_text", "priority_config", "platforms", "entry_points", "plugins", "cli"]


def test_d21_the_configuration_suite_holds_without_asserts():
    done = run_python(
        *("-O", "-m", "pytest", "-q", "-p", "no:cacheprovider"),
        *("-W", "ignore::pytest.PytestConfigWarning"),  # "asserts in plugins are not executed"
        *(str(HERE / f"test_{suite}.py") for suite in SUITES),
        str(HERE / "test_optimised.py::test_asserts_of_tests_count"),
    )
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout


def test_asserts_of_tests_count():
    """Pytest rewrites the asserts of a test into code that -O keeps; else the suite is void."""
    with pytest.raises(AssertionError):
        assert not __name__
