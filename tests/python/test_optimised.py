# SPDX-License-Identifier: Apache-2.0
"""Checks are checks, not assert statements: whole suites pass under `python -O`."""

from pathlib import Path

import pytest
from processes import run_python

HERE = Path(__file__).parent
SUITES = {
    "configuration": "envs priority_text priority_config platforms entry_points plugins cli",
    "facade": "register_op register_impl impl_errors select inplace errors rules",
}
STARTS_A_PROCESS = "test_select.py::test_the_environment_sets_the_start_of_both_switches"


@pytest.mark.parametrize("part", SUITES)
def test_d21_a_suite_holds_without_asserts(part):
    done = run_python(
        *("-O", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
        *("-W", "ignore::pytest.PytestConfigWarning"),  # "asserts in plugins are not executed"
        *(str(HERE / f"test_{suite}.py") for suite in SUITES[part].split()),
        *("--deselect", str(HERE / STARTS_A_PROCESS)),
        str(HERE / "test_optimised.py::test_asserts_of_tests_count"),
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_asserts_of_tests_count():
    """Pytest rewrites the asserts of a test into code that -O keeps; else the suite is void."""
    with pytest.raises(AssertionError):
        assert not __name__
