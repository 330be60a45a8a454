# SPDX-License-Identifier: Apache-2.0
"""Patterns of one's own: what matches, what is left alone and why, and what a mistake says."""

import operator

import pytest
import torch
from fusion_graphs import Fused, passes_as_they_were  # noqa: F401
from torch import Tensor
from toys import line_of, new_name, raises_exactly

import vllm_ir as ir
from vllm_ir.compile import CompileConfig
from vllm_ir.compile.collect import is_donating
from vllm_ir.compile.fusion import KeywordArg, Match, MultiOutputPattern, call, register_fusion
from vllm_ir.errors import IrRuntimeError, IrTypeError, IrValueError

RELU = torch.ops.aten.relu.default
MUL = torch.ops.aten.mul.Tensor


def norm_relu(x: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    return torch.relu(ir.ops.rms_norm(x, weight, epsilon))


NORM_RELU = ir.register_op(norm_relu, name=new_name("norm_relu"))


def captured_norm(**more: object):
    return call(
        ir.ops.rms_norm, KeywordArg("x"), KeywordArg("weight"), KeywordArg("epsilon"), **more
    )


def register_norm_relu(**options):
    """Register the fusion that most tests use, and return the configuration that runs it."""

    @register_fusion("norm_relu", call(RELU, captured_norm()), **options)
    def fused(x, weight, epsilon):
        return NORM_RELU(x, weight, epsilon)

    return CompileConfig(fusions=("norm_relu",))


def sample():
    torch.manual_seed(0)
    return torch.randn(4, 16), torch.randn(16)


def test_one_pattern_fits_every_epsilon_and_every_way_to_write_the_call():
    def model(x, w):
        a = torch.relu(ir.ops.rms_norm(x, w, 1e-5))
        b = torch.relu(ir.ops.rms_norm(a, w, 1e-6, None))
        c = torch.relu(ir.ops.rms_norm(epsilon=0.5, weight=None, x=b))
        return torch.relu(torch.ops.vllm_ir.rms_norm(c, w, 2))

    config = register_norm_relu()
    fused = Fused(model, *sample(), config=config)
    assert fused.ops == [NORM_RELU.name] * 4
    found = fused.calls(NORM_RELU.torch_op)
    assert [n.args[2] for n in found] == [1e-5, 1e-6, 0.5, 2]
    assert torch.equal(fused(*sample()), model(*sample()))


def test_a_default_is_part_of_the_pattern():
    config = register_norm_relu()
    fused = Fused(lambda x, w: torch.relu(ir.ops.rms_norm(x, w, 1e-5, 8)), *sample(), config=config)
    assert fused.ops == ["rms_norm"]
    assert fused.said == [
        "norm_relu at relu: not fused: 'rms_norm' has 8 where the pattern has None"
    ]


def test_a_value_that_something_else_reads_is_left_alone():
    def model(x, w):
        y = ir.ops.rms_norm(x, w, 1e-5)
        z = ir.ops.rms_norm(x, w, 1e-3)
        return torch.relu(y), y * 2, torch.relu(z), z

    config = register_norm_relu()
    fused = Fused(model, *sample(), config=config)
    assert fused.ops == ["rms_norm", "rms_norm"]
    assert fused.said == [
        "norm_relu at relu: not fused: 'rms_norm' is read by 'mul' too",
        "norm_relu at relu_1: not fused: 'rms_norm_1' is read by the caller too",
    ]


def test_a_value_read_twice_inside_the_match_is_inside_it():
    norm = captured_norm()

    @register_fusion("norm_square", call(MUL, norm, norm))
    def fused_square(x, weight, epsilon):
        return NORM_RELU(x, weight, epsilon) + 1

    def model(x, w):
        y = ir.ops.rms_norm(x, w, 1e-5)
        return y * y

    fused = Fused(model, *sample(), config=CompileConfig(fusions=("norm_square",)))
    assert fused.ops == [NORM_RELU.name]


def test_a_value_among_the_outputs_is_made_by_the_replacement():
    norm = captured_norm()

    @register_fusion("both", MultiOutputPattern([call(RELU, norm), norm]))
    def both(x, weight, epsilon):
        return NORM_RELU(x, weight, epsilon), ir.ops.rms_norm(x, weight, epsilon) + 0

    def model(x, w):
        y = ir.ops.rms_norm(x, w, 1e-5)
        return torch.relu(y), y * 2

    fused = Fused(model, *sample(), config=CompileConfig(fusions=("both",)))
    assert sorted(fused.ops) == sorted([NORM_RELU.name, "rms_norm"])
    for got, want in zip(fused(*sample()), model(*sample()), strict=True):
        assert torch.equal(got, want)


def test_results_of_an_op_are_matched_one_by_one_read_or_not():
    fused_norm = call(ir.ops.fused_add_rms_norm, *map(KeywordArg, ("x", "r", "weight", "epsilon")))
    first, second = (call(operator.getitem, fused_norm, i) for i in (0, 1))

    @register_fusion("relu_behind", MultiOutputPattern([call(RELU, first), second]))
    def relu_behind(x, r, weight, epsilon):
        return NORM_RELU(x + r, weight, epsilon), x + r

    config = CompileConfig(fusions=("relu_behind",))
    for model in (reads_both, reads_one):
        x, w = sample()
        fused = Fused(model, x, x * 3, w, config=config)
        assert fused.ops == [NORM_RELU.name]
        for got, want in zip(fused(x, x * 3, w), model(x, x * 3, w), strict=True):
            torch.testing.assert_close(got, want)


def reads_both(x, r, w):
    y, s = ir.ops.fused_add_rms_norm(x, r, w, 1e-6)
    return torch.relu(y), s


def reads_one(x, r, w):
    return (torch.relu(ir.ops.fused_add_rms_norm(x, r, w, 1e-6)[0]),)


def test_a_call_with_several_results_can_be_replaced_whole():
    whole = call(ir.ops.fused_add_rms_norm, *map(KeywordArg, ("x", "r", "weight", "epsilon")))

    @register_fusion("apart", whole)
    def apart(x, r, weight, epsilon):
        return ir.ops.rms_norm(x + r, weight, epsilon), x + r

    def model(x, r, w):
        y, s = ir.ops.fused_add_rms_norm(x, r, w, 1e-6)
        return y, s, s + 1

    x, w = sample()
    fused = Fused(model, x, x * 3, w, config=CompileConfig(fusions=("apart",)))
    assert fused.ops == ["rms_norm"]
    for got, want in zip(fused(x, x * 3, w), model(x, x * 3, w), strict=True):
        assert torch.equal(got, want)


def test_the_first_of_several_patterns_that_fits_is_taken():
    norm = captured_norm()
    factor = KeywordArg("factor")

    @register_fusion("either_side", call(MUL, norm, factor), call(MUL, factor, norm))
    def either_side(x, weight, epsilon, factor):
        return NORM_RELU(x, weight, epsilon) * factor

    def model(x, w):
        return ir.ops.rms_norm(x, w, 1e-5) * w + w * ir.ops.rms_norm(x, None, 1e-6)

    fused = Fused(model, *sample(), config=CompileConfig(fusions=("either_side",)))
    assert fused.ops == [NORM_RELU.name] * 2


def test_a_pattern_may_leave_out_what_has_a_default():
    @register_fusion(
        "either", call(RELU, captured_norm()), call(MUL, captured_norm(), KeywordArg("y"))
    )
    def either(x, weight, epsilon, y=None):
        norm = NORM_RELU(x, weight, epsilon)
        return norm if y is None else norm * y

    def model(x, w):
        return torch.relu(ir.ops.rms_norm(x, w, 1e-5)), ir.ops.rms_norm(x, w, 1e-5) * w

    fused = Fused(model, *sample(), config=CompileConfig(fusions=("either",)))
    assert fused.ops == [NORM_RELU.name] * 2


def test_what_is_captured_twice_must_be_the_same():
    norm = captured_norm()

    @register_fusion("norm_by_weight", call(MUL, norm, KeywordArg("weight")))
    def norm_by_weight(x, weight, epsilon):
        return NORM_RELU(x, weight, epsilon)

    def model(x, w):
        return ir.ops.rms_norm(x, w, 1e-5) * w, ir.ops.rms_norm(x, w, 1e-5) * (w + 1)

    fused = Fused(model, *sample(), config=CompileConfig(fusions=("norm_by_weight",)))
    assert fused.ops == ["rms_norm", NORM_RELU.name] or fused.ops == [NORM_RELU.name, "rms_norm"]


def test_a_write_in_between_stands_in_the_way():
    def model(x, w):
        y = ir.ops.rms_norm(x, w, 1e-5)
        x.add_(1)
        return torch.relu(y)

    config = register_norm_relu()
    fused = Fused(model, *sample(), config=config)
    assert fused.said == ["norm_relu at relu: not fused: 'add_' writes memory in between"]


def test_a_random_operator_in_between_is_not_moved():
    norm = call(ir.ops.rms_norm, KeywordArg("x"), KeywordArg("weight"), KeywordArg("epsilon"))

    @register_fusion("both", MultiOutputPattern([call(MUL, norm, KeywordArg("y")), norm]))
    def both(x, weight, epsilon, y):
        return NORM_RELU(x, weight, epsilon) * y, NORM_RELU(x, weight, epsilon)

    def model(x, w):
        y = ir.ops.rms_norm(x, w, 1e-5)
        noise = torch.bernoulli(torch.sigmoid(y))
        late = w + 1
        return y * late, noise

    fused = Fused(model, *sample(), config=CompileConfig(fusions=("both",)))
    assert fused.said == [
        "both at mul: not fused: 'bernoulli' stands in between and can't be moved"
    ]


def test_a_check_has_the_last_word_and_its_reason_is_reported():
    seen: list[Match] = []

    def check(match: Match) -> str:
        seen.append(match)
        return "" if match.values["epsilon"] < 1e-4 else "the epsilon is too large"

    def model(x, w):
        y = torch.relu(ir.ops.rms_norm(x, w, 1e-5))
        return torch.relu(ir.ops.rms_norm(y, w, 0.5))

    config = register_norm_relu(check=check)
    fused = Fused(model, *sample(), config=config)
    assert fused.ops == [NORM_RELU.name, "rms_norm"]
    assert fused.said[1] == "norm_relu at relu_1: not fused: the epsilon is too large"
    assert seen[0].config is config
    assert [n.name for n in seen[0].nodes] == ["rms_norm", "relu"]
    assert seen[0].values["x"].shape == (4, 16)


def test_a_check_that_branches_on_the_batch_adds_no_guard():
    def check(match: Match) -> str:
        return "few rows" if match.values["x"].shape[0] < 100 else ""

    config = register_norm_relu(check=check)
    fused = Fused(
        lambda x, w: torch.relu(ir.ops.rms_norm(x, w, 1e-5)), *sample(), config=config,
        symbolic=True,
    )  # fmt: skip
    (said,) = fused.said
    assert said.startswith("norm_relu at relu: not fused: its check branches on a symbolic size: ")
    env = fused.call("rms_norm").meta["val"].fake_mode.shape_env
    assert not [g for g in env.guards if "100" in str(g.expr)]


def test_a_check_must_say_it_in_words():
    config = register_norm_relu(check=lambda match: True)
    with pytest.raises(IrRuntimeError) as raised:
        Fused(lambda x, w: torch.relu(ir.ops.rms_norm(x, w, 1e-5)), *sample(), config=config)
    assert (
        "vllm_ir.fusion.norm_relu: the pass failed, got IrTypeError: the check must return a str, "
        "'' to go on or else the reason, got bool." in str(raised.value)
    )


@pytest.mark.parametrize(
    ("wrong", "got"),
    [
        (lambda y: y.double(), "float64[4, 16] on cpu"),
        (lambda y: y[:2], "float32[2, 16] on cpu"),
        (lambda y: y.sum(-1), "float32[4] on cpu"),
        (lambda y: None, "NoneType"),
    ],
)
def test_a_replacement_of_another_kind_is_an_error(wrong, got):
    @register_fusion("wrong", call(RELU, captured_norm()))
    def replacement(x, weight, epsilon):
        return wrong(NORM_RELU(x, weight, epsilon))

    with raises_exactly(
        IrTypeError,
        "vllm_ir.fusion.wrong: result 0 of the replacement must be float32[4, 16] on cpu as "
        f"'relu' is, got {got}. Mend the replacement. Written at\n    <unknown line>",
    ):
        Fused(
            lambda x, w: torch.relu(ir.ops.rms_norm(x, w, 1e-5)), *sample(),
            config=CompileConfig(fusions=("wrong",)),
        )  # fmt: skip


def test_a_replacement_with_another_number_of_results_is_an_error():
    @register_fusion("wrong", call(RELU, captured_norm()))
    def replacement(x, weight, epsilon):
        return NORM_RELU(x, weight, epsilon), x

    with raises_exactly(
        IrTypeError,
        "vllm_ir.fusion.wrong: the replacement must return 1 tensors, one for each output of the "
        "pattern, got 2. Mend the replacement.",
    ):
        Fused(
            lambda x, w: torch.relu(ir.ops.rms_norm(x, w, 1e-5)), *sample(),
            config=CompileConfig(fusions=("wrong",)),
        )  # fmt: skip


def test_a_replacement_that_raises_is_named():
    @register_fusion("broken", call(RELU, captured_norm()))  # registered here
    def replacement(x, weight, epsilon):
        raise ZeroDivisionError("no epsilon")

    where = line_of("registered here", __file__)
    with raises_exactly(
        IrRuntimeError,
        "vllm_ir.fusion.broken: the pass failed, got ZeroDivisionError: no epsilon. Mend it "
        f"({where}), or leave it out of CompileConfig(fusions=...).",
    ):
        Fused(
            lambda x, w: torch.relu(ir.ops.rms_norm(x, w, 1e-5)), *sample(),
            config=CompileConfig(fusions=("broken",)),
        )  # fmt: skip


def test_a_replacement_must_not_write_its_arguments():
    @register_fusion("writes", call(RELU, captured_norm()))
    def replacement(x, weight, epsilon):
        x.add_(1)
        return NORM_RELU(x, weight, epsilon)

    with raises_exactly(
        IrRuntimeError,
        "vllm_ir.fusion.writes: what takes the place of 'relu' modifies an argument in place. Work "
        "on a copy. Written at\n    <unknown line>",
    ):
        Fused(
            lambda x, w: torch.relu(ir.ops.rms_norm(x, w, 1e-5)), *sample(),
            config=CompileConfig(fusions=("writes",)),
        )  # fmt: skip


def test_a_replacement_may_lie_otherwise_in_memory():
    @register_fusion("columns", call(RELU, captured_norm()))
    def replacement(x, weight, epsilon):
        return NORM_RELU(x, weight, epsilon).t().contiguous().t()

    def model(x, w):
        y = torch.relu(ir.ops.rms_norm(x, w, 1e-5))
        return y, y.view(-1)

    fused = Fused(model, *sample(), config=CompileConfig(fusions=("columns",)))
    (view,) = fused.calls(torch.ops.aten.view.default)
    (restrided,) = fused.calls(torch.ops.aten.clone.default)[-1:]
    assert restrided.meta["val"].stride() == (16, 1)
    assert view.args[0] is restrided


def test_a_replacement_that_is_an_argument_is_copied():
    @register_fusion("nothing", call(RELU, captured_norm()))
    def replacement(x, weight, epsilon):
        return x

    def model(x, w):
        return torch.relu(ir.ops.rms_norm(x, w, 1e-5))

    x, w = sample()
    fused = Fused(model, x, w, config=CompileConfig(fusions=("nothing",)))
    got = fused(x, w)
    assert torch.equal(got, x)
    assert got.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("keeps", [True, False])
def test_a_donation_goes_on_when_the_same_activations_are_donated(keeps):
    def pair(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + y, x - y

    def single(x: Tensor) -> Tensor:
        return x * 2

    donating = ir.register_op(single, name=new_name("single"), allow_inplace=True)
    two = ir.register_op(pair, name=new_name("pair"), allow_inplace=True, activations=["x", "y"])
    pattern = call(torch.ops.aten.add.Tensor, call(donating, KeywordArg("x")), KeywordArg("y"))

    @register_fusion("pair_up", pattern)
    def pair_up(x, y):
        return donating(x) if keeps else two(x, y)[0]

    def model(x, y):
        return getattr(torch.ops.vllm_ir, donating.name).donated(x) + y

    x, _ = sample()
    fused = Fused(model, x, x * 2, config=CompileConfig(fusions=("pair_up",)))
    (node,) = fused.calls((donating if keeps else two).torch_op)
    assert is_donating(node) is keeps


def test_an_op_inside_the_replacement_may_be_written_in_any_form():
    @register_fusion("again", call(RELU, captured_norm()))
    def replacement(x, weight, epsilon):
        return ir.ops.rms_norm(weight=weight, x=x, epsilon=epsilon).abs()

    fused = Fused(
        lambda x, w: torch.relu(ir.ops.rms_norm(x, w, 1e-5)), *sample(),
        config=CompileConfig(fusions=("again",)),
    )  # fmt: skip
    assert len(fused.call("rms_norm").args) == 4
    assert not fused.call("rms_norm").kwargs


def test_a_keyword_that_the_pattern_does_not_have_must_be_at_its_default():
    add = call(torch.ops.aten.add.Tensor, captured_norm(), KeywordArg("y"))

    @register_fusion("norm_add", add)
    def norm_add(x, weight, epsilon, y):
        return NORM_RELU(x, weight, epsilon) + y

    def model(x, w):
        y = torch.add(ir.ops.rms_norm(x, w, 1e-5), x, alpha=1)
        return torch.add(ir.ops.rms_norm(y, w, 1e-5), x, alpha=3)

    fused = Fused(model, *sample(), config=CompileConfig(fusions=("norm_add",)))
    assert fused.ops == [NORM_RELU.name, "rms_norm"]
    assert fused.said[1] == (
        "norm_add at add_1: not fused: 'add_1' has alpha=3, which isn't in the pattern"
    )


def test_the_result_of_one_fusion_is_seen_by_the_next():
    register_norm_relu()

    @register_fusion(
        "and_scale", call(MUL, call(NORM_RELU, *map(KeywordArg, ("x", "weight", "epsilon"))), 2)
    )
    def and_scale(x, weight, epsilon):
        return NORM_RELU(x + 0, weight, epsilon)

    def model(x, w):
        return torch.relu(ir.ops.rms_norm(x, w, 1e-5)) * 2

    config = CompileConfig(fusions=("norm_relu", "and_scale"))
    fused = Fused(model, *sample(), config=config)
    assert [(r.name, r.matched) for r in fused.rows] == [("norm_relu", True), ("and_scale", True)]
    assert not fused.calls(MUL)


def test_call_takes_the_arguments_of_an_op_by_name():
    by_name = call(ir.ops.rms_norm, epsilon=1e-5, x=KeywordArg("x"), weight=None)
    assert repr(by_name) == (
        "CallFunction(vllm_ir.rms_norm.default, KeywordArg('x'), None, 1e-05, None, "
        "_users=MULTIPLE)"
    )
    with raises_exactly(
        IrTypeError,
        "vllm_ir.rms_norm: missing a required argument: 'weight'. It takes "
        f"{ir.ops.rms_norm.signature}.",
    ):
        call(ir.ops.rms_norm, KeywordArg("x"))


@pytest.mark.parametrize(
    ("patterns", "kind", "text"),
    [
        ([], IrTypeError, "a pattern is needed, got none. Write one with call(op, ...)."),
        (
            [KeywordArg("x")],
            IrTypeError,
            "a pattern must be made by call(...) or MultiOutputPattern([...]), got KeywordArg.",
        ),
        (
            [call(RELU, KeywordArg("y"))],
            IrValueError,
            "the parameters of the replacement must be what the pattern captures, (y), got (x). "
            "A parameter that one of several patterns doesn't capture needs a default.",
        ),
        (
            [call(RELU, torch._inductor.pattern_matcher.Arg())],
            IrTypeError,
            "captures go to the replacement by name, got Arg(). Write KeywordArg('name').",
        ),
    ],
)
def test_a_pattern_that_can_not_work_is_refused_at_registration(patterns, kind, text):
    with raises_exactly(kind, f"vllm_ir.fusion.refused: {text}"):

        @register_fusion("refused", *patterns)
        def replacement(x):
            return x
