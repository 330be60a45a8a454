# SPDX-License-Identifier: Apache-2.0
"""The core of the facade's suite under `python -O`, where an assert is nothing."""

from pathlib import Path

from processes import run_python

HERE = Path(__file__).parent
SUITES = ["register_op", "register_impl", "impl_errors", "select", "inplace", "errors", "rules"]
FRESH_PROCESS = "test_the_environment_sets_the_start_of_both_switches"


def test_the_facade_holds_without_asserts():
    done = run_python(
        *("-O", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
        *("-W", "ignore::pytest.PytestConfigWarning"),  # "asserts in plugins are not executed"
        *(str(HERE / f"test_{suite}.py") for suite in SUITES),
        *("--deselect", str(HERE / "test_select.py") + "::" + FRESH_PROCESS),
        str(HERE / "test_optimised.py::test_asserts_of_tests_count"),
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
