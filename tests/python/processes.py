# SPDX-License-Identifier: Apache-2.0
"""Fresh interpreters, for what depends on the environment or on the first import."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping


def run_python(
    *args: str, env: Mapping[str, str] | None = None, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the interpreter of the tests with our variables unset, then `env` set."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")}
    return subprocess.run(
        [sys.executable, *args],
        env={**inherited, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


def output_of(script: str, env: Mapping[str, str] | None = None) -> str:
    """Run a script, which must succeed, and return what it printed."""
    done = run_python("-c", textwrap.dedent(script), env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout
