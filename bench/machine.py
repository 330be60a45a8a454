# SPDX-License-Identifier: Apache-2.0
"""The facts without which a measured number means nothing: processor, versions, commit."""

import os
import platform
import subprocess
from pathlib import Path

import torch


def describe_machine() -> dict[str, str]:
    """Return the facts that are printed above each table."""
    return {
        "processor": f"{processor_name()}, {os.cpu_count()} logical cores",
        "isa": torch.backends.cpu.get_cpu_capability(),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, load {os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": commit(),
    }


def processor_name() -> str:
    """Return the processor's name, with family and model, which tell generations apart."""
    facts: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            facts.setdefault(key.strip(), value.strip())
    except OSError:
        return platform.processor() or platform.machine()
    generation = f"family {facts.get('cpu family')}, model {facts.get('model')}"
    return f"{facts.get('model name', 'unknown')} ({generation})"


def commit() -> str:
    """Return the commit of the sources, with a mark when files differ from it."""
    here = Path(__file__).resolve().parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
