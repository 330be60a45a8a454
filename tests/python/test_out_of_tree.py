# SPDX-License-Identifier: Apache-2.0
"""The example package, really installed: found in a fresh process and in a spawned worker."""

import json
import os
import shutil
import textwrap
from pathlib import Path

import pytest
from processes import output_of, run_python

EXAMPLE = Path(__file__).parents[2] / "examples" / "out_of_tree"

CHOICES = """
    import sys
    import multiprocessing

    def choices(lists, given):
        import torch
        import vllm_ir as ir
        ir.IrOpPriorityConfig(**lists).apply()
        x, w = torch.ones(2, 4), torch.ones(4)
        assert torch.equal(ir.ops.example_scale(x, 2.0), x * 2)
        torch.testing.assert_close(ir.ops.rms_norm(x, w, 0.0), x)
        given.put([
            ir.current_platform().name,
            ir.ops.rms_norm.dispatch(x, w, 1e-6).provider,
            ir.ops.rms_norm.dispatch(x, w, 1e-6, 2).provider,
            ir.ops.example_scale.dispatch(x, 2.0).provider,
        ])

    def main(lists):
        context = multiprocessing.get_context("spawn")
        given = context.SimpleQueue()
        choices(lists, given)
        worker = context.Process(target=choices, args=(lists, given))
        worker.start()
        worker.join()
        print("here", *given.get())
        print("worker", *given.get())

    if __name__ == "__main__":
        main(eval(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the example installed by pip."""
    folder = tmp_path_factory.mktemp("site")
    source = folder / "source"
    shutil.copytree(EXAMPLE, source)  # the build writes beside its sources
    done = run_python(
        *("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"),
        *("--disable-pip-version-check", "--target", str(folder / "packages"), str(source)),
    )
    assert done.returncode == 0, done.stderr
    return folder / "packages"


@pytest.fixture(scope="module")
def environment(site):
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path}


def chosen(tmp_path, environment, lists="{}"):
    script = tmp_path / "choices.py"
    script.write_text(textwrap.dedent(CHOICES))
    done = run_python(str(script), lists, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_d26_a_configured_plugin_is_selected_here_and_in_a_spawned_worker(tmp_path, environment):
    lists = "{'rms_norm': 'example', 'example_scale': 'example'}"
    answers = chosen(tmp_path, environment, lists)
    assert [answer.split()[0] for answer in answers] == ["here", "worker"]
    for answer in answers:
        _, platform, rms_norm, partial_rms_norm, scale = answer.split()
        assert platform != "example"
        assert (rms_norm, scale) == ("example", "example")
        assert partial_rms_norm != "example"


def test_d26_a_platform_plugin_decides_here_and_in_a_spawned_worker(tmp_path, environment):
    answers = chosen(tmp_path, {**environment, "EXAMPLE_PLATFORM": "1"})
    assert answers == [
        "here example example native example",
        "worker example example native example",
    ]


@pytest.fixture(scope="module")
def seen(environment):
    """What one process with the plugins sees; it imports a plugin before vllm_ir."""
    script = """
        import vllm_ir_example.provider
        import contextlib, io, json
        import torch
        import vllm_ir as ir
        from vllm_ir.__main__ import main
        from vllm_ir.testing import assert_matches_native

        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            args = ir.ops.rms_norm.generate_inputs(num_tokens=3, hidden_size=40, dtype=dtype)
            assert_matches_native(ir.ops.rms_norm, "example", *args)
            assert_matches_native(ir.ops.example_scale, "example", args[0], 0.3)

        def printed(*words):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                assert main(words) == 0
            return out.getvalue()

        option = "--ir-op-priority.example_scale"
        print(json.dumps({
            "states": {record.name: record.state for record in ir.load_plugins()},
            "impls": list(ir.ops.rms_norm.impls),
            "explain": printed("explain", "example_scale", option + "=example"),
            "env": printed("env"),
        }))
    """
    return json.loads(output_of(script, environment))


def test_a_module_as_entry_point_may_be_imported_first(seen):
    assert seen["states"] == {
        "example_platform": "unavailable",
        "example_op": "loaded",
        "example_provider": "loaded",
    }
    assert "example" in seen["impls"]


def test_the_command_line_knows_an_out_of_tree_op(seen):
    assert "vllm_ir.example_scale: example runs" in seen["explain"]


def test_env_names_the_package_of_each_plugin(seen):
    assert "plugin 'example_provider' of vllm-ir-example 1.0" in seen["env"]


def test_plugins_can_be_left_out_by_name(environment):
    script = """
        import vllm_ir as ir
        print(*[f"{r.name}={r.state}" for r in ir.load_plugins()])
        print("example_scale" in ir.IrOp.registry, "example" in ir.ops.rms_norm.impls)
    """
    printed = output_of(script, {**environment, "VLLM_IR_PLUGINS": "example_op"})
    assert printed.splitlines() == [
        "example_platform=disabled example_op=loaded example_provider=disabled",
        "True False",
    ]


def test_a_function_as_entry_point_says_when_its_module_was_imported_first(environment):
    done = run_python("-c", "import vllm_ir_example.scale", env=environment)
    assert done.returncode == 0
    assert done.stderr == (
        "WARNING vllm_ir: vllm_ir.plugins: plugin 'example_op' of vllm-ir-example 1.0 "
        "(vllm_ir.providers = vllm_ir_example.scale:register) failed, got IrImportError: "
        "vllm_ir_example.scale was imported first and isn't ready: import vllm_ir before it. Mend "
        "or uninstall it, or leave it out with "
        "VLLM_IR_PLUGINS=example_platform,example_provider.\n"
    )
