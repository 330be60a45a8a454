# SPDX-License-Identifier: Apache-2.0
import argparse
import itertools

import pytest
import torch

import vllm_ir as ir
from vllm_ir import cli
from vllm_ir.errors import IrError, IrValueError, UnknownNameError
from vllm_ir.priority import IrOpPriorityConfig

_number = itertools.count()


@pytest.fixture
def parser():
    parser = argparse.ArgumentParser(prog="serve")
    parser.add_argument("model")
    parser.add_argument("--port", type=int)
    cli.add_arguments(parser)
    return parser


@pytest.fixture
def late_op(parser):
    """An op that was registered after the parser was made."""

    def native(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    op = ir.register_op(native, name=f"late_op_{next(_number)}")
    op.register_impl("theirs")(native)
    return op.name


def priorities(parser, *args):
    return cli.from_args(parser.parse_args(["model", *args]))


def test_no_option_is_an_empty_configuration(parser):
    assert priorities(parser) == IrOpPriorityConfig()
    assert cli.from_args(argparse.Namespace()) == IrOpPriorityConfig()


@pytest.mark.parametrize("form", ["--ir-op-priority.{}={}", "--ir-op-priority.{} {}"])
def test_an_option_for_an_in_tree_op(parser, form):
    args = form.format("rms_norm", "vllm_c,native").split()
    assert priorities(parser, *args) == IrOpPriorityConfig(rms_norm="vllm_c,native")


@pytest.mark.parametrize("form", ["--ir-op-priority.{}={}", "--ir-op-priority.{} {}"])
def test_an_option_for_an_op_registered_after_the_parser_was_made(parser, late_op, form):
    args = form.format(late_op, "theirs,native").split()
    assert priorities(parser, *args) == IrOpPriorityConfig(**{late_op: "theirs,native"})


def test_options_mix_with_the_program_s_own(parser, late_op):
    words = f"--ir-op-priority.rms_norm native m --ir-op-priority.{late_op}=theirs --port 3"
    namespace = parser.parse_args([*words.split(), "--ir-op-priority.fused_add_rms_norm=native"])
    assert (namespace.model, namespace.port) == ("m", 3)
    assert sorted(cli.from_args(namespace)) == ["fused_add_rms_norm", late_op, "rms_norm"]


def test_subcommands_known_args_and_intermixed_args(late_op):
    option = f"--ir-op-priority.{late_op}=theirs"
    main = argparse.ArgumentParser()
    command = main.add_subparsers().add_parser("run")
    cli.add_arguments(command)
    assert late_op in cli.from_args(main.parse_args(["run", option]))
    assert late_op in cli.from_args(command.parse_known_args([option, "--else"])[0])
    assert late_op in cli.from_args(command.parse_intermixed_args([option]))


def test_options_may_stand_in_a_file(late_op, tmp_path):
    parser = argparse.ArgumentParser(fromfile_prefix_chars="@")
    cli.add_arguments(parser)
    file = tmp_path / "args"
    file.write_text(f"--ir-op-priority.{late_op}\ntheirs\n")
    assert late_op in cli.from_args(parser.parse_args([f"@{file}"]))


def test_the_remainder_of_a_command_line_belongs_to_the_program(late_op):
    parser = argparse.ArgumentParser()
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    cli.add_arguments(parser)
    words = ["program", f"--ir-op-priority.{late_op}=theirs"]
    namespace = parser.parse_args(words)
    assert namespace.rest == words
    assert cli.from_args(namespace) == IrOpPriorityConfig()


def test_arguments_default_to_the_command_line(parser, monkeypatch):
    monkeypatch.setattr("sys.argv", ["serve", "m", "--ir-op-priority.rms_norm=native"])
    assert cli.from_args(parser.parse_args()) == IrOpPriorityConfig(rms_norm="native")


def test_help_lists_every_registered_op_with_its_providers(parser, late_op, capsys):
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"--ir-op-priority.{late_op} PROVIDERS providers of {late_op}" in text
    assert "native, theirs" in text


def test_the_same_list_twice_is_fine(parser):
    config = priorities(
        parser,
        "--ir-op-priority.rms_norm=vllm_c,native",
        "--ir-op-priority.rms_norm=vllm_c, native",
    )
    assert config == IrOpPriorityConfig(rms_norm="vllm_c,native")


def test_d21_an_op_given_twice_with_different_lists_is_an_error(parser):
    with pytest.raises(IrValueError) as error:
        priorities(parser, "--ir-op-priority.rms_norm=native", "--ir-op-priority.rms_norm=vllm_c")
    assert str(error.value) == (
        "vllm_ir.rms_norm: one place sets the priority of an op, got 'native' from "
        "--ir-op-priority.rms_norm=native and 'vllm_c' from --ir-op-priority.rms_norm=vllm_c. "
        "Remove one of them."
    )


@pytest.mark.parametrize("option", ["rms=native", "rmsnorm=native", "=native", "a.b=native"])
def test_d20_an_unknown_op_is_an_error_and_never_a_short_form(parser, option):
    with pytest.raises(UnknownNameError) as error:
        priorities(parser, f"--ir-op-priority.{option}")
    name = option.partition("=")[0]
    assert str(error.value).startswith(f"vllm_ir: unknown op '{name}'. Known: ")


def test_d20_an_unknown_provider_is_an_error(parser, late_op):
    with pytest.raises(UnknownNameError) as error:
        priorities(parser, f"--ir-op-priority.{late_op}=theris")
    assert str(error.value) == (
        f"vllm_ir.{late_op}: unknown provider 'theris'. Known: native, theirs. "
        "Did you mean 'theirs'?"
    )


@pytest.mark.parametrize("text", ["", " ", ",", "a,,b", "A", "['a','b']"])
def test_d22_malformed_text_is_an_error_that_quotes_it(parser, text):
    with pytest.raises(IrValueError) as error:
        priorities(parser, f"--ir-op-priority.rms_norm={text}")
    assert repr(text) in str(error.value)


def test_d21_one_error_names_every_problem_of_a_command_line(parser):
    options = ["rms_norm=a,,b", "rmsnorm=native", "fused_add_rms_norm=vlm_c"]
    with pytest.raises(IrError) as error:
        priorities(parser, *(f"--ir-op-priority.{option}" for option in options))
    assert str(error.value).startswith("vllm_ir: 3 problems in the priorities.\n  ")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (
            ["--ir-op-priority"],
            "--ir-op-priority needs the name of an op: --ir-op-priority.rms_norm=a,b",
        ),
        (
            ["--ir-op-priority=x"],
            "--ir-op-priority needs the name of an op: --ir-op-priority.rms_norm=x",
        ),
        (
            ["--ir-op-priority.rms_norm"],
            "argument --ir-op-priority.rms_norm: expected one argument",
        ),
    ],
)
def test_an_incomplete_option_is_a_usage_error(parser, capsys, args, text):
    with pytest.raises(SystemExit) as exit_:
        parser.parse_args(["model", *args])
    assert exit_.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"serve: error: {text}"
