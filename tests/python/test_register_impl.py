# SPDX-License-Identifier: Apache-2.0
import functools
import inspect
import textwrap

import pytest
import torch
from torch import Tensor
from toys import line_of, new_pair, new_toy, pair_inplace, raises_exactly, runs, toy_native

import vllm_ir as ir
from vllm_ir import _C, rules
from vllm_ir.errors import DuplicateError, IrTypeError, IrValueError, UnknownNameError


def same(x: Tensor, y: Tensor | None = None, scale: float = 1.0, n: int | None = None,
         flag: bool = False) -> Tensor:  # fmt: skip
    """Do as the toy does."""
    return toy_native(x, y, scale, n, flag)


def refused(op, kind, text, provider="mine", fn=same, **options):
    with raises_exactly(kind, f"vllm_ir.{op.name}{text}"):
        op.register_impl(provider, **options)(fn)
    assert list(op.impls) == ["native"]
    assert op.supported_providers() == ["native"]
    op.register_impl("mine")(same)  # the refusal left nothing behind
    op.set_default(["mine"])
    with runs(op, mine=1):
        op(torch.ones(2))


# ---- what it returns -----------------------------------------------------------------------------


def test_the_decorated_name_is_the_impl():
    op = new_toy()

    @op.register_impl("mine")  # registered here
    def impl(x: Tensor, y: Tensor | None = None, scale: float = 1.0, n: int | None = None,
             flag: bool = False) -> Tensor:  # fmt: skip
        """Mine."""
        return x * scale

    assert isinstance(impl, ir.IrOpImpl)
    assert impl is op.impls["mine"]
    assert impl.op is op
    assert impl.provider == "mine"
    assert impl.impl_fn.__name__ == "impl"
    assert impl.supported is True
    assert impl.unsupported_reason == ""
    assert impl.supports_all_args is True
    assert impl.rule is None
    assert impl.inplace is False
    assert impl.batch_invariant is False
    assert impl.entry == ""
    assert impl.source == line_of("registered here", __file__)
    assert impl.__doc__ == "Mine."
    assert repr(impl) == f"IrOpImpl('{op.name}', 'mine')"
    assert not callable(impl)
    assert torch.equal(impl.impl_fn(torch.ones(2), None, 2.0), torch.full((2,), 2.0))


def test_impls_are_in_order_of_registration_and_native_is_first():
    op = new_toy("b", "a", "c")
    assert list(op.impls) == ["native", "b", "a", "c"]


def test_supported_providers():
    op = new_toy("a")
    op.register_impl("off", supported=False, unsupported_reason="no chip")(same)
    assert op.supported_providers() == ["native", "a"]
    assert op.impls["off"].unsupported_reason == "no chip"


@pytest.mark.parametrize(
    "fact",
    ["op", "provider", "impl_fn", "supported", "supports_all_args", "inplace", "batch_invariant"],
)
def test_the_facts_of_an_impl_are_read_only(fact):
    impl = new_toy("a").impls["a"]
    before = getattr(impl, fact)
    with pytest.raises(AttributeError):
        setattr(impl, fact, "another")
    assert getattr(impl, fact) is before


def test_one_function_may_serve_several_providers():
    op = new_toy()
    for provider in ("a", "b"):
        op.register_impl(provider)(same)
    for provider in ("a", "b"):
        op.set_default([provider])
        with runs(op, **{provider: 1}):
            op(torch.ones(1))


def test_an_impl_registered_later_counts_where_a_platform_named_it():
    op = new_toy()
    op.set_default([])
    assert op.set_platform_default(["late", "native"]) == ["late"]
    assert op.get_priority() == ["native"]
    op.register_impl("late")(same)
    assert op.get_priority() == ["late"]
    with runs(op, late=1):
        op(torch.ones(1))


# ---- names and flags -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "Vllm", "1st", "a-b", "a b", "a\n", "ä", "a,b", "a.b"])
def test_invalid_provider_names(name):
    op = new_toy()
    refused(
        op,
        IrValueError,
        f": provider name '{name}' is invalid. It must match ^[a-z_][a-z0-9_]*$.",
        provider=name,
    )


def test_a_provider_name_that_is_no_string():
    refused(
        new_toy(),
        IrTypeError,
        ": a provider name must be a string, got function. Write @op.register_impl('name').",
        provider=same,
    )


def test_reserved_native():
    op = new_toy()
    text = (
        f"vllm_ir.{op.name}: provider 'native' is reserved: it is the op's own function at "
        f"{op.source}. Registered at {line_of('reserved native', __file__)}; choose another name "
        "for this implementation."
    )
    with raises_exactly(DuplicateError, text):
        op.register_impl("native")(same)  # reserved native
    assert op.impls["native"].impl_fn is toy_native


def test_reserved_unfused():
    op = new_toy()
    text = (
        f"vllm_ir.{op.name}: provider 'unfused' is reserved. Registered at "
        f"{line_of('reserved unfused', __file__)}; choose another name for this implementation."
    )
    with raises_exactly(DuplicateError, text):
        op.register_impl("unfused")(same)  # reserved unfused
    assert list(op.impls) == ["native"]


def test_duplicate_provider():
    op = new_toy()
    op.register_impl("mine")(same)  # first impl
    first = op.impls["mine"]
    text = (
        f"vllm_ir.{op.name}: provider 'mine' is already registered at "
        f"{line_of('first impl', __file__)}; the second registration is at "
        f"{line_of('second impl', __file__)}. Import the module once, or choose another name."
    )
    with raises_exactly(DuplicateError, text):
        op.register_impl("mine")(same)  # second impl
    assert op.impls["mine"] is first
    op.set_default(["mine"])
    with runs(op, mine=1):
        op(torch.ones(1))


@pytest.mark.parametrize("flag", ["supported", "inplace", "batch_invariant", "memoise"])
def test_flags_must_be_bools(flag):
    refused(new_toy(), IrTypeError, f".mine: {flag} must be a bool, got str.", **{flag: "no"})


def test_inplace_needs_an_op_that_allows_it():
    refused(
        new_toy(),
        IrValueError,
        ".mine: inplace=True needs an op with allow_inplace=True.",
        inplace=True,
    )


def test_unknown_entry():
    with pytest.raises(UnknownNameError) as error:
        new_toy().register_impl("mine", entry="vllm_ir_C::rms_nrm")(same)
    text = str(error.value)
    assert ".mine: unknown entry 'vllm_ir_C::rms_nrm'. Known: " in text
    assert text.endswith(" Did you mean 'vllm_ir_C::rms_norm'?")


# ---- schema --------------------------------------------------------------------------------------

TOY_SCHEMA = (
    "(Tensor x, Tensor? y=None, float scale=1.0, SymInt? n=None, bool flag=False) -> Tensor"
)


@pytest.mark.parametrize(
    ("source", "schema"),
    [
        ("(x: Tensor) -> Tensor", "(Tensor x) -> Tensor"),
        (
            "(a: Tensor, y: Tensor | None = None, scale: float = 1.0, n: int | None = None, "
            "flag: bool = False) -> Tensor",
            TOY_SCHEMA.replace(" x,", " a,").replace("(Tensor x", "(Tensor a"),
        ),
        (
            "(x: Tensor, y: Tensor | None = None, scale: float = 2.0, n: int | None = None, "
            "flag: bool = False) -> Tensor",
            TOY_SCHEMA.replace("1.0", "2.0"),
        ),
        (
            "(x: Tensor, y: Tensor | None = None, scale: float = 1.0, n: int = 0, "
            "flag: bool = False) -> Tensor",
            TOY_SCHEMA.replace("SymInt? n=None", "SymInt n=0"),
        ),
        (
            "(x: Tensor, y: Tensor | None = None, scale: float = 1.0, n: int | None = None, "
            "flag: bool = False) -> tuple[Tensor, Tensor]",
            TOY_SCHEMA.replace("-> Tensor", "-> (Tensor, Tensor)"),
        ),
    ],
    ids=["fewer", "name", "default", "type", "result"],
)
def test_an_impl_must_have_native_s_schema(source, schema):
    scope = {"Tensor": Tensor}
    exec(f"def fn{source}:\n    return x", scope)
    refused(
        new_toy(),
        IrValueError,
        f".mine: the implementation's schema {schema} does not match native schema {TOY_SCHEMA}. "
        "Give it native's parameters, types, defaults and result.",
        fn=scope["fn"],
    )


def test_an_impl_may_spell_its_types_in_another_way():
    op = new_toy()
    scope = {}
    exec(
        "from __future__ import annotations\n"
        "def fn(x: 'torch.Tensor', y: Optional[Tensor] = None, scale: float = 1.0, "
        "n: Union[int, None] = None, flag: bool = False) -> torch.Tensor:\n"
        "    return x * scale",
        scope,
    )
    op.register_impl("mine")(scope["fn"])
    op.set_default(["mine"])
    with runs(op, mine=1):
        op(torch.ones(1))


# ---- supports_args -------------------------------------------------------------------------------


def predicate_refused(text, supports_args):
    op = new_toy()
    refused(op, IrValueError, f".mine: {text}", supports_args=supports_args)


def test_a_predicate_must_be_callable():
    predicate_refused("supports_args must be a callable or a rule, got int.", 5)


def test_a_predicate_needs_native_s_number_of_parameters():
    predicate_refused(
        "supports_args has the wrong number of parameters: native takes 5 (x, y, scale, n, flag), "
        "got 1.",
        lambda x: True,
    )


def test_a_predicate_has_no_keyword_only_parameters():
    predicate_refused(
        "supports_args has keyword-only parameters. Remove the *.",
        lambda x, y=None, scale=1.0, n=None, *, flag=False: True,
    )


def test_a_predicate_needs_native_s_parameter_names():
    predicate_refused(
        "supports_args parameter 'z' does not match native parameter 'y'.",
        lambda x, z=None, scale=1.0, n=None, flag=False: True,
    )


@pytest.mark.parametrize(
    ("supports_args", "name", "needed", "got"),
    [
        (lambda x, y=None, scale=2.0, n=None, flag=False: True, "scale", "1.0", "2.0"),
        (lambda x, y=None, scale=1, n=None, flag=False: True, "scale", "1.0", "1"),
        (lambda x, y=None, scale=1.0, n=None, flag=0: True, "flag", "False", "0"),
        (lambda x=1, y=None, scale=1.0, n=None, flag=False: True, "x", "no default", "1"),
    ],
)
def test_a_predicate_needs_native_s_defaults(supports_args, name, needed, got):
    predicate_refused(
        f"supports_args default of '{name}' does not match native default: {needed} is needed, "
        f"got {got}.",
        supports_args,
    )


def test_a_predicate_without_defaults_does_not_match_native_default():
    predicate_refused(
        "supports_args default of 'y' does not match native default: None is needed, "
        "got no default.",
        lambda x, y, scale, n, flag: True,
    )


@pytest.mark.parametrize(
    "supports_args",
    [
        lambda *args: True,
        lambda x, y=None, scale=1.0, n=None, flag=False: True,
        functools.partial(lambda answer, *args: answer, True),
    ],
    ids=["args", "exact", "partial"],
)
def test_predicates_that_fit(supports_args):
    op = new_toy()
    impl = op.register_impl("mine", supports_args=supports_args)(same)
    assert impl.supports_all_args is False
    assert impl.rule is None
    op.set_default(["mine", "native"])
    with runs(op, mine=1):
        op(torch.ones(1))


def test_a_predicate_without_a_signature():
    predicate_refused(
        f"supports_args must have a signature that can be read, got {max!r}. "
        "Wrap it in a function with native's parameters.",
        max,
    )


def test_supports_args_of_an_impl_answers_for_any_provider():
    op = new_toy()
    ruled = op.register_impl("ruled", supports_args=rules.is_none("y"))(same)
    asked = op.register_impl("asked", supports_args=lambda x, y=None, scale=1.0, n=None,
                             flag=False: y is None)(same)  # fmt: skip
    off = op.register_impl("off", supported=False, supports_args=rules.is_none("y"))(same)
    every = op.register_impl("every")(same)
    x = torch.ones(2)
    for impl in (ruled, asked, off):
        assert impl.supports_args(x) is True
        assert impl.supports_args(x, x) is False
        assert impl.supports_args(x, y=x) is False
    assert every.supports_args(x, x) is True
    assert op.report().calls == 0


def test_supports_args_binds_as_a_call_does():
    op = new_toy("a")
    with raises_exactly(
        IrTypeError,
        f"vllm_ir.{op.name}: missing a required argument: 'x'. It takes {op.signature}.",
    ):
        op.impls["a"].supports_args()
    with raises_exactly(
        IrTypeError,
        f"vllm_ir.{op.name}: got an unexpected keyword argument 'z'. It takes {op.signature}.",
    ):
        op.impls["a"].supports_args(torch.ones(1), z=1)


def test_supports_args_gives_no_notice_and_is_calm_in_strict_mode(caplog):
    op = new_toy()
    impl = op.register_impl("off", supported=False, supports_args=rules.is_none("y"))(same)
    ir.set_strict(True)
    assert impl.supports_args(torch.ones(1)) is True
    ir.set_batch_invariant(True)
    assert impl.supports_args(torch.ones(1)) is True
    assert caplog.messages == []


def test_an_impl_is_known_before_it_can_be_chosen(monkeypatch):
    """A thread that dispatches while another one registers must find what the core names."""
    op = new_toy()
    seen = []

    def add_impl(name, provider, *rest):
        seen.append((provider, provider in op.impls))
        if provider == "refused":
            raise IrValueError("no")

    monkeypatch.setattr(_C, "add_impl", add_impl)
    impl = op.register_impl("mine")(same)
    with pytest.raises(IrValueError):
        op.register_impl("refused")(same)
    assert seen == [("mine", True), ("refused", True)]
    assert list(op.impls) == ["native", "mine"]
    assert op.impls["mine"] is impl


def test_a_duplicate_does_not_displace_the_first():
    op = new_toy()
    first = op.register_impl("mine")(same)
    with pytest.raises(DuplicateError):
        op.register_impl("mine")(same)
    assert op.impls["mine"] is first


# ---- uuid ----------------------------------------------------------------------------------------


def test_uuid_is_stable_and_tells_impls_apart():
    op = new_toy()
    impls = [
        op.register_impl("a")(same),
        op.register_impl("b", batch_invariant=True)(same),
        op.register_impl("c", supports_args=rules.is_none("y"))(same),
        op.register_impl("d", supports_args=rules.is_given("y"))(same),
        op.register_impl("e", supported=False)(same),
    ]
    uuids = [impl.uuid() for impl in impls]
    assert uuids == [impl.uuid() for impl in impls]
    assert None not in uuids
    assert len(set(uuids)) == len(uuids)


def test_uuid_changes_with_the_file_of_the_impl(tmp_path):
    code = "def fn(x):\n    return helper(x)\ndef helper(x):\n    return x + {}\n"
    path = tmp_path / "impl_of_test.py"

    def uuid(number):
        path.write_text(code.format(number))
        scope = {}
        exec(compile(path.read_text(), str(path), "exec"), scope)
        impl = ir.IrOpImpl.__new__(ir.IrOpImpl)
        impl.__dict__.update(op.impls["native"].__dict__)
        impl.__dict__["impl_fn"] = scope["fn"]
        return impl.uuid()

    op = new_toy()
    first, second = uuid(1), uuid(2)
    assert None not in (first, second)
    assert first != second
    assert uuid(1) == first


def test_uuid_of_what_can_t_be_known_is_none():
    op = new_toy()
    scope = {"Tensor": Tensor}
    exec(f"def typed{'(x: Tensor, y: Tensor | None = None, scale: float = 1.0, '}"
         "n: int | None = None, flag: bool = False) -> Tensor:\n    return x", scope)  # fmt: skip
    assert op.register_impl("typed")(scope["typed"]).uuid() is None


class Limit:
    """A state that no source shows."""

    def __init__(self, limit):
        self.limit = limit

    def method(self, *args):
        return args[0].dim() < self.limit

    __call__ = method

    def implementation(self, x: Tensor, y: Tensor | None = None, scale: float = 1.0,
                       n: int | None = None, flag: bool = False) -> Tensor:  # fmt: skip
        return x * self.limit


def at_most(limit, *args):
    return args[0].dim() <= limit


def anything(*args):
    return True


def test_uuid_of_what_holds_a_state_is_none():
    op = new_toy()
    for provider, supports_args in {"method": Limit(3).method, "object": Limit(3)}.items():
        assert op.register_impl(provider, supports_args=supports_args)(same).uuid() is None
    assert op.register_impl("mine")(Limit(3).implementation).uuid() is None
    known = {
        "function": anything,
        "partial": functools.partial(at_most, 3),
        "cached": functools.lru_cache(anything),
    }
    for provider, supports_args in known.items():
        assert op.register_impl(provider, supports_args=supports_args)(same).uuid() is not None


def test_uuid_without_a_file_to_read_is_none(tmp_path, monkeypatch):
    op = new_toy()
    path = tmp_path / "gone.py"
    path.write_text(textwrap.dedent(inspect.getsource(same)))
    scope = {"Tensor": Tensor}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    impl = op.register_impl("gone")(scope["same"])
    assert impl.uuid() is not None
    path.unlink()  # inspect still has its lines
    assert impl.uuid() is None
    shipped = ir.ops.rms_norm.impls["vllm_c"]
    monkeypatch.setattr("vllm_ir.impl.entry_library", lambda entry: str(path))
    assert shipped.uuid() is None


def test_uuid_of_the_shipped_impls_is_known():
    for op in (ir.ops.rms_norm, ir.ops.fused_add_rms_norm):
        uuids = [op.impls[p].uuid() for p in ("native", "vllm_c")]
        assert None not in uuids
        assert len(set(uuids)) == 2


def test_an_inplace_impl_says_so():
    op = new_pair("fast")
    assert op.impls["fast"].inplace is True
    assert op.impls["fast"].impl_fn is pair_inplace


@pytest.mark.parametrize("kind", ["op", "coroutine", "generator"])
def test_only_a_plain_function_is_an_implementation(kind):
    op = new_toy()

    async def coroutine(x: Tensor) -> Tensor:
        return x

    def generator(x: Tensor) -> Tensor:
        yield x

    fn = {"op": op, "coroutine": coroutine, "generator": generator}[kind]
    text = f"vllm_ir.{op.name}.mine: a plain function is needed, got {fn!r}."
    with raises_exactly(ir.IrValueError, text):
        op.register_impl("mine")(fn)
    assert list(op.impls) == ["native"]
