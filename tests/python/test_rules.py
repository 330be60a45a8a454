# SPDX-License-Identifier: Apache-2.0
"""Rules as Python has them: values that print, and clauses that decide real and fake calls."""

import pickle

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from toys import new_name, raises_exactly, runs, same_as

import vllm_ir as ir
from vllm_ir import rules
from vllm_ir.errors import IrValueError, UnknownNameError
from vllm_ir.rules import Rule

H, F32, F64 = torch.float16, torch.float32, torch.float64

# rule -> its text
TEXTS = {
    rules.dtype("x", H, torch.bfloat16): 'dtype("x") in {float16, bfloat16}',
    rules.dtype("x", torch.bfloat16, H): 'dtype("x") in {float16, bfloat16}',
    rules.same_dtype("w", "x"): 'same_dtype("w", "x")',
    rules.same_dtype("w", "x", or_in=(F32,)): 'same_dtype("w", "x") or in {float32}',
    rules.device("x", "cuda", "cpu"): 'device("x") in {cpu, cuda}',
    rules.same_device("w", "x"): 'same_device("w", "x")',
    rules.same_shape("w", "x"): 'same_shape("w", "x")',
    rules.is_none("n"): 'is_none("n")',
    rules.is_given("n"): 'is_given("n")',
    rules.min_dims("x", 2): 'min_dims("x", 2)',
    rules.matches_last_dim("w", "x"): 'matches_last_dim("w", "x")',
    rules.within_last_dim("n", "x"): 'within_last_dim("n", "x")',
    rules.last_dim_contiguous("x"): 'last_dim_contiguous("x")',
    rules.last_dim_multiple_of("x", 8): 'last_dim_multiple_of("x", 8)',
    rules.last_dim_at_most("x", 64): 'last_dim_at_most("x", 64)',
    rules.flattens_for_free("x"): 'flattens_for_free("x")',
    rules.aligned("x", 16): 'aligned("x", 16)',
    rules.no_overlap("x"): 'no_overlap("x")',
    rules.no_overlap("x", "w"): 'no_overlap("x", "w")',
}


# ---- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", TEXTS, ids=str)
def test_a_rule_prints_as_it_is_written(rule):
    assert str(rule) == TEXTS[rule]


def test_every_function_of_the_module_is_in_the_table():
    own = [f for f in vars(rules).values() if getattr(f, "__module__", "") == rules.__name__]
    public = {f.__name__ for f in own if f.__name__[0].islower()}
    assert {clause[0] for rule in TEXTS for clause in rule.clauses} == public


def test_and_joins_clauses_in_order():
    both = rules.is_none("n") & rules.min_dims("x", 1) & rules.is_given("w")
    assert str(both) == 'is_none("n") & min_dims("x", 1) & is_given("w")'
    assert both == rules.is_none("n") & (rules.min_dims("x", 1) & rules.is_given("w"))


def test_rules_are_values():
    a, b = rules.dtype("x", H) & rules.is_none("n"), rules.dtype("x", H) & rules.is_none("n")
    assert a == b
    assert hash(a) == hash(b)
    assert a != rules.is_none("n") & rules.dtype("x", H)
    assert a != rules.dtype("x", F32) & rules.is_none("n")
    assert len({a, b, rules.is_none("n")}) == 2
    assert pickle.loads(pickle.dumps(a)) == a
    assert isinstance(a, Rule)
    with pytest.raises(AttributeError):
        a.clauses = ()


@pytest.mark.parametrize("other", [True, None, lambda: True, 'is_none("n")'])
def test_and_with_anything_else_is_a_type_error(other):
    with pytest.raises(TypeError, match="unsupported operand type"):
        rules.is_none("n") & other


def test_a_bad_clause_fails_where_it_is_written():
    cases = [
        (
            lambda: rules.dtype("x"),
            IrValueError,
            "vllm_ir.rules.dtype: needs at least one allowed value, got none.",
        ),
        (
            lambda: rules.device("x"),
            IrValueError,
            "vllm_ir.rules.device: needs at least one allowed value, got none.",
        ),
        (
            lambda: rules.min_dims("x", 0),
            IrValueError,
            "vllm_ir.rules.min_dims: needs a positive number, got 0.",
        ),
        (
            lambda: rules.last_dim_multiple_of("x", -8),
            IrValueError,
            "vllm_ir.rules.last_dim_multiple_of: needs a positive number, got -8.",
        ),
        (
            lambda: rules.last_dim_at_most("x", 0),
            IrValueError,
            "vllm_ir.rules.last_dim_at_most: needs a positive number, got 0.",
        ),
        (
            lambda: rules.aligned("x", 0),
            IrValueError,
            "vllm_ir.rules.aligned: needs a positive number, got 0.",
        ),
        (
            lambda: rules.no_overlap(),
            IrValueError,
            "vllm_ir.rules.no_overlap: takes 1 to 4 parameter name(s), got 0.",
        ),
        (
            lambda: rules.no_overlap(*"abcde"),
            IrValueError,
            "vllm_ir.rules.no_overlap: takes 1 to 4 parameter name(s), got 5.",
        ),
    ]
    for make, kind, text in cases:
        with raises_exactly(kind, text):
            make()


def test_unknown_devices_and_dtypes_list_the_known_ones():
    with pytest.raises(ValueError, match="gpu") as error:
        rules.device("x", "gpu")
    assert isinstance(error.value, ir.IrError)
    for known in ("cpu", "cuda", "xpu", "mps"):
        assert known in str(error.value)
    with pytest.raises(ValueError, match="quint8") as error:
        rules.dtype("x", torch.quint8)
    assert isinstance(error.value, ir.IrError)
    assert "float16" in str(error.value)


def test_why_a_clause_is_there_is_told_by_rejections_only():
    rule = rules.device("x", "cuda", because="the vendor's library is for GPUs")
    assert str(rule) == 'device("x") in {cuda}'
    assert rule != rules.device("x", "cuda")
    (rejected, _) = op_with(rule).explain(torch.ones(2)).decisions
    assert str(rejected) == (
        'rejected: x is on cpu; needs device("x") in {cuda}: the vendor\'s library is for GPUs'
    )


def test_a_rule_made_by_hand_is_checked_when_it_prints():
    with pytest.raises(UnknownNameError) as error:
        str(Rule((("is_non", ("x",), (), 0, ""),)))
    text = str(error.value)
    assert text.startswith("vllm_ir.rules: unknown clause 'is_non'. Known: ")
    assert text.endswith(" Did you mean 'is_none'?")


def native(x: Tensor, w: Tensor | None = None, n: int | None = None, e: float = 1.0) -> Tensor:
    return x * e


def op_with(rule):
    op = ir.register_op(native, name=new_name())
    op.register_impl("ruled", supports_args=rule)(same_as(native))
    op.set_default(["ruled", "native"])
    return op


def test_the_parameters_of_a_rule_are_checked_at_registration():
    op = ir.register_op(native, name=new_name())
    where = f"vllm_ir.{op.name}.mine: clause "
    cases = [
        (
            rules.is_none("nn"),
            UnknownNameError,
            where + "is_none(\"nn\"): unknown parameter 'nn'. Known: e, n, w, x. Did you mean 'n'?",
        ),
        (
            rules.dtype("n", H),
            IrValueError,
            where + "dtype(\"n\") in {float16} needs 'n' to be Tensor, got int.",
        ),
        (
            rules.within_last_dim("e", "x"),
            IrValueError,
            where + 'within_last_dim("e", "x") needs \'e\' to be int, got float.',
        ),
        (
            rules.within_last_dim("n", "n"),
            IrValueError,
            where + 'within_last_dim("n", "n") needs \'n\' to be Tensor, got int.',
        ),
    ]
    for rule, kind, text in cases:
        with raises_exactly(kind, text):
            op.register_impl("mine", supports_args=rule)(same_as(native))
        assert list(op.impls) == ["native"]


# ---- accept and reject ---------------------------------------------------------------------------

X = torch.ones(3, 8)
UNALIGNED = torch.ones(65)[1:].view(8, 8)
ROWS = torch.ones(4, 3, 16)

# name: rule, accepted arguments, rejected ones with the reason
CLAUSES = {
    "dtype": (
        rules.dtype("x", F32, H),
        [(X,), (X.half(),)],
        [((X.double(),), "x.dtype is float64; needs dtype(\"x\") in {float32, float16}")],
    ),
    "dtype of None": (rules.dtype("w", H), [(X,), (X, X.half())],
        [((X, X), 'w.dtype is float32; needs dtype("w") in {float16}')]),
    "same_dtype": (
        rules.same_dtype("w", "x"),
        [(X, X), (X,)],
        [((X, X.half()), 'w.dtype is float16, x.dtype is float32; needs same_dtype("w", "x")')],
    ),
    "same_dtype or": (
        rules.same_dtype("w", "x", or_in=(F64,)),
        [(X, X), (X, X.double())],
        [
            (
                (X, X.half()),
                "w.dtype is float16, x.dtype is float32; "
                'needs same_dtype("w", "x") or in {float64}',
            )
        ],
    ),
    "device": (
        rules.device("x", "cpu"),
        [(X,)],
        [((X.to("meta"),), 'x is on meta; needs device("x") in {cpu}')],
    ),
    "same_device": (
        rules.same_device("w", "x"),
        [(X, X), (X,)],
        [((X, X.to("meta")), 'w is on meta, x on cpu; needs same_device("w", "x")')],
    ),
    "same_shape": (
        rules.same_shape("w", "x"),
        [(X, torch.ones(3, 8)), (X,)],
        [
            (
                (X, torch.ones(8)),
                'w.shape is (8,), x.shape is (3, 8); needs same_shape("w", "x")',
            )
        ],
    ),
    "is_none": (
        rules.is_none("n"),
        [(X,)],
        [((X, None, 3), 'n is given; needs is_none("n")')],
    ),
    "is_given": (
        rules.is_given("w"),
        [(X, X)],
        [((X,), 'w is None; needs is_given("w")')],
    ),
    "min_dims": (
        rules.min_dims("x", 2),
        [(X,), (ROWS,)],
        [((torch.ones(8),), 'x has 1 dimension(s); needs min_dims("x", 2)')],
    ),
    "matches_last_dim": (
        rules.matches_last_dim("w", "x"),
        [(X, torch.ones(8)), (X,)],
        [
            (
                (X, torch.ones(7)),
                'w.shape is (7,), x.shape is (3, 8); needs matches_last_dim("w", "x")',
            ),
            (
                (X, torch.ones(1, 8)),
                'w.shape is (1, 8), x.shape is (3, 8); needs matches_last_dim("w", "x")',
            ),
        ],
    ),
    "within_last_dim": (
        rules.within_last_dim("n", "x"),
        [(X, None, 1), (X, None, 8), (X,)],
        [
            ((X, None, n), f'n is {n}, x.shape[-1] is 8; needs within_last_dim("n", "x")')
            for n in (0, 9, -1)
        ],
    ),
    "last_dim_contiguous": (
        rules.last_dim_contiguous("x"),
        [(X,), (torch.ones(8, 1).t().t(),), (torch.tensor(1.0),), (torch.ones(3, 0).t().t(),)],
        [((torch.ones(8, 3).t(),), 'x.stride(-1) is 3; needs last_dim_contiguous("x")')],
    ),
    "last_dim_multiple_of": (
        rules.last_dim_multiple_of("x", 4),
        [(X,), (torch.ones(3, 0),)],
        [((torch.ones(3, 6),), 'x.shape[-1] is 6; needs last_dim_multiple_of("x", 4)')],
    ),
    "last_dim_at_most": (
        rules.last_dim_at_most("x", 8),
        [(X,)],
        [((torch.ones(9),), 'x.shape[-1] is 9; needs last_dim_at_most("x", 8)')],
    ),
    "flattens_for_free": (
        rules.flattens_for_free("x"),
        [(X,), (ROWS,), (ROWS[:, :, :8],), (ROWS[:, :1],), (ROWS[1],), (torch.tensor(1.0),)],
        [
            (
                (ROWS[:, :2],),
                "x does not flatten to rows without a copy; "
                'needs flattens_for_free("x")',
            )
        ],
    ),
    "aligned": (
        rules.aligned("x", 16),
        [(torch.ones(64),)],
        [((UNALIGNED,), 'x starts 4 byte(s) past the alignment; needs aligned("x", 16)')],
    ),
    "no_overlap": (
        rules.no_overlap("x", "w"),
        [(X, torch.ones(3, 8)), (X,), (ROWS[0, :, :8], ROWS[0, :, 8:])],
        [
            ((X, X), 'elements share memory, or may; needs no_overlap("x", "w")'),
            ((X[:1].expand(3, 8),), 'elements share memory, or may; needs no_overlap("x", "w")'),
        ],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def ruled():
    """One op for each clause."""
    return {name: op_with(rule) for name, (rule, _, _) in CLAUSES.items()}


def is_real(args):
    return all(a.device.type == "cpu" for a in args if torch.is_tensor(a))


@pytest.mark.parametrize("name", CLAUSES)
def test_what_a_clause_accepts(ruled, name):
    op = ruled[name]
    for args in CLAUSES[name][1]:
        assert op.explain(*args).selected == "ruled", args
        with runs(op, ruled=2):
            op(*args)
            op.torch_op(*args)


@pytest.mark.parametrize("name", CLAUSES)
def test_what_a_clause_rejects_and_why(ruled, name):
    op = ruled[name]
    for args, reason in CLAUSES[name][2]:
        decision = op.explain(*args).decisions[0]
        assert (decision.provider, decision.status) == ("ruled", "rejected")
        assert decision.reason == reason
        assert op.impls["ruled"].supports_args(*args) is False
        if is_real(args):
            with runs(op, native=2):
                op(*args)
                op.torch_op(*args)


@pytest.mark.parametrize("name", sorted(set(CLAUSES) - {"aligned"}))
def test_fake_tensors_decide_as_real_ones_do(ruled, name):
    op = ruled[name]
    accepted, rejected = CLAUSES[name][1:]
    if name == "no_overlap":  # every fake tensor has a storage of its own
        accepted, rejected = accepted[:2], rejected[1:]
    mode = torch._subclasses.FakeTensorMode()

    def faked(args):
        return [mode.from_tensor(a) if torch.is_tensor(a) else a for a in args]

    for args in accepted:
        assert op.explain(*faked(args)).selected == "ruled", args
    for args, reason in rejected:
        if is_real(args):
            assert op.explain(*faked(args)).decisions[0].reason == reason


def dynamic_mode():
    return torch._subclasses.FakeTensorMode(shape_env=ShapeEnv())


# ---- symbolic sizes ------------------------------------------------------------------------------


def symbolic(mode, real, *dynamic):
    sizes = [DimDynamic.DYNAMIC if d in dynamic else DimDynamic.STATIC for d in range(real.dim())]
    return mode.from_tensor(real, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))


SYMBOLIC_ROWS = [
    *("dtype", "same_dtype", "device", "is_none", "is_given", "min_dims", "matches_last_dim"),
    *("within_last_dim", "last_dim_contiguous", "last_dim_multiple_of", "last_dim_at_most"),
    "flattens_for_free",
]


def test_a_symbolic_batch_changes_no_verdict_and_adds_no_guard(ruled):
    for name in SYMBOLIC_ROWS:
        mode = dynamic_mode()
        x = symbolic(mode, torch.ones(5, 8), 0)
        assert isinstance(x.shape[0], torch.SymInt)
        w = symbolic(mode, torch.ones(8))  # none of its dimensions
        n = 3 if name == "within_last_dim" else None
        assert ruled[name].explain(x, w, n).selected == "ruled", name
        assert mode.shape_env.guards == [], name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "matches_last_dim",
            'w.shape is (symbolic,), x.shape is (5, symbolic); needs matches_last_dim("w", "x")',
        ),
        ("within_last_dim", 'n is 3, x.shape[-1] is symbolic; needs within_last_dim("n", "x")'),
        ("last_dim_multiple_of", 'x.shape[-1] is symbolic; needs last_dim_multiple_of("x", 4)'),
        ("last_dim_at_most", 'x.shape[-1] is symbolic; needs last_dim_at_most("x", 8)'),
        ("aligned", 'x has no address while compiling; needs aligned("x", 16)'),
    ],
)
def test_a_symbolic_last_dim_rejects_with_that_reason_and_adds_no_guard(ruled, name, reason):
    mode = dynamic_mode()
    x, w = symbolic(mode, torch.ones(5, 8), 1), symbolic(mode, torch.ones(7), 0)
    decision = ruled[name].explain(x, w, 3).decisions[0]
    assert (decision.status, decision.reason) == ("rejected", reason)
    assert mode.shape_env.guards == []


def test_same_shape_needs_the_same_symbol(ruled):
    mode = dynamic_mode()
    x = symbolic(mode, torch.ones(5, 8), 0)
    other = symbolic(mode, torch.ones(6, 8), 0)
    op = ruled["same_shape"]
    assert op.explain(x, x).selected == "ruled"
    assert op.explain(x, torch.empty_like(x)).selected == "ruled"
    assert op.explain(x, other).decisions[0].reason == (
        'w.shape is (symbolic, 8), x.shape is (symbolic, 8); needs same_shape("w", "x")'
    )
    assert mode.shape_env.guards == []


def test_flattening_is_proven_symbolically(ruled):
    mode = dynamic_mode()
    op = ruled["flattens_for_free"]
    x = symbolic(mode, torch.ones(5, 6, 8), 0, 1)
    assert op.explain(x).selected == "ruled"
    assert op.explain(x.transpose(0, 1)).selected == "native"
    assert mode.shape_env.guards == []


def test_overlap_of_fake_tensors(ruled):
    mode = dynamic_mode()
    x, w = (symbolic(mode, torch.ones(5, 8), 0) for _ in range(2))
    op = ruled["no_overlap"]
    assert op.explain(x, w).selected == "ruled"
    assert op.explain(x, x).selected == "native"
    assert op.explain(x[:1].expand(5, 8), w).selected == "native"
    assert mode.shape_env.guards == []


def test_a_symbolic_integer_rejects(ruled):
    mode = dynamic_mode()
    x = symbolic(mode, torch.ones(5, 8), 0)
    decision = ruled["within_last_dim"].explain(x, None, x.shape[0]).decisions[0]
    assert decision.reason == ('n is symbolic, x.shape[-1] is 8; needs within_last_dim("n", "x")')
    assert mode.shape_env.guards == []


def test_unbacked_sizes_reject_and_do_not_raise(ruled):
    mode = dynamic_mode()
    with mode:
        u = mode.shape_env.create_unbacked_symint()
        torch._check(u >= 0)
        x = torch.empty(u, 8)
        y = torch.empty(4, u)
    before = list(mode.shape_env.guards)
    for name, op in ruled.items():
        for t in (x, y):
            op.explain(t, t, 3)
        if name in SYMBOLIC_ROWS and name not in ("is_none", "matches_last_dim"):
            assert op.explain(x, x, 3).selected == "ruled", name
    assert mode.shape_env.guards == before


def test_the_rule_of_an_impl_is_a_fact():
    rule = rules.is_none("n") & rules.min_dims("x", 1)
    impl = op_with(rule).impls["ruled"]
    assert impl.rule == rule
    assert impl.supports_all_args is False


def test_clauses_take_names_and_whole_numbers():
    for make, text in (
        (
            lambda: rules.device("x", torch.device("cpu")),
            "vllm_ir.rules.device: names must be strings, got device.",
        ),
        (
            lambda: rules.device("x", "cpu", because=None),
            "vllm_ir.rules.device: names must be strings, got NoneType.",
        ),
        (lambda: rules.is_none(3), "vllm_ir.rules.is_none: names must be strings, got int."),
        (
            lambda: rules.min_dims("x", 1.5),
            "vllm_ir.rules.min_dims: needs an int, got float.",
        ),
        (
            lambda: bool(rules.is_none("x")),
            "vllm_ir.rules: a rule is neither true nor false. Join rules with '&'.",
        ),
    ):
        with raises_exactly(ir.IrTypeError, text):
            make()
