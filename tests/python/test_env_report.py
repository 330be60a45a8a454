# SPDX-License-Identifier: Apache-2.0
import importlib.metadata

import pytest
import torch

from vllm_ir import _build_info, entry_points
from vllm_ir.entry_points import PluginRecord
from vllm_ir.env_report import _run, env_report, package_version


def test_it_starts_no_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: pytest.fail("a device was started"))
    assert env_report().sections["cuda"]["initialised here"] == "False"


def test_it_holds_what_a_bug_report_needs():
    sections = env_report().sections
    assert sections["torch"]["version"] == torch.__version__
    assert sections["build"]["torch"] == _build_info.TORCH
    assert sections["machine"]["instruction set in use"] in {"base", "x86-64-v3", "x86-64-v4"}
    assert "rms_norm" in sections["vllm_ir"]["ops"]


def test_the_version_is_that_of_the_build_else_of_the_package(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"{name} 0.8")
    monkeypatch.setattr(_build_info, "VERSION", "0.9.dev1")
    assert env_report().sections["vllm_ir"]["version"] == "0.9.dev1"
    monkeypatch.setattr(_build_info, "VERSION", "")
    report = env_report()
    assert report.sections["vllm_ir"]["version"] == "vllm_ir 0.8"
    assert "version" not in report.sections["build"]  # one place tells it


def test_no_version_where_none_is_installed(monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    monkeypatch.setattr(_build_info, "VERSION", "")
    assert package_version() is None
    assert env_report().sections["vllm_ir"]["version"] is None


def test_variables_that_are_set_not_set_or_unknown(monkeypatch):
    monkeypatch.setenv("VLLM_IR_LOGGING_LEVEL", "ERROR")
    monkeypatch.setenv("VLLM_IR_STRIKT", "1")
    monkeypatch.delenv("VLLM_IR_STRICT", raising=False)
    facts = env_report().sections["environment"]
    assert facts["VLLM_IR_LOGGING_LEVEL"] == "ERROR"
    assert facts["VLLM_IR_STRICT"] == "not set (0)"
    assert "Did you mean 'VLLM_IR_STRICT'?" in facts["VLLM_IR_STRIKT"]
    assert "VLLM_IR_CUDA" not in facts  # the build reads it, the process doesn't


def test_plugins_with_their_package_and_outcome(monkeypatch):
    record = PluginRecord("vllm_ir.providers", "a", "m:f", "pkg 1.0", "failed", "OSError: no")
    monkeypatch.setattr(entry_points, "records", lambda: (record,))
    report = env_report()
    assert "  plugin 'a' of pkg 1.0 (vllm_ir.providers = m:f)  failed: OSError: no" in str(report)
    assert report.to_dict()["plugins"] == [
        {
            "group": "vllm_ir.providers",
            "name": "a",
            "target": "m:f",
            "package": "pkg 1.0",
            "state": "failed",
            "reason": "OSError: no",
        }
    ]


def test_a_section_without_facts_says_none(monkeypatch):
    monkeypatch.setattr(entry_points, "records", tuple)
    assert str(env_report()).endswith("plugins: none")


def test_a_tool_that_is_missing_or_fails_is_reported(monkeypatch, tmp_path):
    assert _run("no-such-tool") == "no no-such-tool on PATH"
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho a; echo; echo ' b'; echo bad >&2; exit $1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert _run("tool", "0") == "a; b"
    assert _run("tool", "3") == "a; b; bad"
    tool.write_text("not a program")
    assert _run("tool").startswith("OSError: ")
