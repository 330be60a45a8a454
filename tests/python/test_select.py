# SPDX-License-Identifier: Apache-2.0
"""Which implementation runs: priority, scopes and switches. What asks agrees with what runs."""

import asyncio
import contextlib
import contextvars
import gc
import textwrap
import threading

import pytest
import torch
from processes import run_python
from torch import Tensor
from toys import counts, new_name, new_pair, new_toy, raises_exactly, runs, same_as, toy_native

import vllm_ir as ir
from vllm_ir import _C, rules
from vllm_ir.errors import IrRuntimeError, IrTypeError, UnknownNameError

X = torch.ones(2)


@pytest.fixture
def op():
    return new_toy("a", "b", "c")


def ran(op, *args):
    """Call the op by both routes; what ran must be what every way of asking names."""
    args = args or (X,)
    asked = op.dispatch(*args)
    explanation = op.explain(*args)
    assert explanation.selected == asked.provider
    assert explanation.priority == tuple(op.get_priority())
    assert asked.provider in op.get_priority()
    with runs(op, **{asked.provider: 2}):
        op(*args)
        op.torch_op(*args)
    assert asked is op.impls[asked.provider]
    return asked.provider


def picky(op, provider, answer, **options):
    op.register_impl(provider, supports_args=lambda *args: answer, **options)(same_as(toy_native))


# ---- the list ------------------------------------------------------------------------------------


def test_first_supported_impl_that_accepts_wins(op):
    picky(op, "no", False)
    picky(op, "yes", True)
    op.register_impl("off", supported=False)(same_as(toy_native))
    op.register_impl("ruled", supports_args=rules.is_given("y"))(same_as(toy_native))
    op.set_default(["off", "no", "ruled", "yes", "a"])
    assert ran(op) == "yes"
    assert ran(op, X, X) == "ruled"
    op.set_default(["off", "no", "a", "yes"])
    assert ran(op) == "a"
    op.set_default(["no", "off"])
    assert ran(op) == "native"


def test_set_default_is_permanent_and_the_last_one_counts(op):
    op.set_default(["a"])
    op.set_default(("b", "a"))
    assert op.get_default() == ["b", "a"]
    assert op.get_priority() == ["b"]
    assert ran(op) == "b"


def test_duplicates_are_removed_and_the_first_one_counts(op):
    picky(op, "no", False)
    op.set_default(["no", "a", "no", "b", "a"])
    assert op.get_priority() == ["no", "a"]
    op.set_default(["no", "no"])
    assert op.get_priority() == ["no", "native"]
    assert ran(op) == "native"


def test_the_list_is_copied(op):
    names = ["a"]
    op.set_default(names)
    names[0] = "b"
    assert ran(op) == "a"
    op.get_default().append("c")
    op.get_priority().clear()
    assert op.get_default() == ["a"]
    assert ran(op) == "a"


def test_the_user_s_list_is_in_front_of_the_platform_s(op):
    picky(op, "no", False)
    assert op.set_platform_default(["b", "native"]) == []
    op.set_default(["no"])
    assert op.get_priority() == ["no", "b"]
    assert ran(op) == "b"
    op.set_default([])
    assert ran(op) == "b"


def test_a_platform_s_unknown_names_are_returned_and_skipped(op):
    op.set_default([])
    assert op.set_platform_default(["later", "b", "never"]) == ["later", "never"]
    assert ran(op) == "b"


def test_a_platform_default_for_compiling_is_another_one(op):
    op.set_default([])
    op.set_platform_default(["a"])
    op.set_platform_default(["b"], compiling=True)
    assert op.get_priority() == ["a"]
    assert op.get_priority(compiling=True) == ["b"]
    assert ran(op) == "a"


def test_priority_never_set_means_native_with_one_notice(caplog):
    op = ir.register_op(toy_native, name=new_toy().name + "_unset")
    op.register_impl("a")(same_as(toy_native))
    for _ in range(3):
        assert ran(op) == "native"
    assert caplog.messages == [
        f"vllm_ir.{op.name}: Priority not set for op {op.name}: native is used. "
        f"Set one with vllm_ir.ops.{op.name}.set_default([...])."
    ]


def test_a_list_without_an_end_gets_native_with_one_notice(op, caplog):
    picky(op, "no", False)
    op.set_default(["no"])
    notice = (
        f"vllm_ir.{op.name}: no listed provider accepts every argument, so native follows the "
        "list. End it with 'native' to say so yourself."
    )
    assert caplog.messages == [notice]
    for _ in range(3):
        assert ran(op) == "native"
    with op.set_priority(["no"]):
        assert ran(op) == "native"
    op.set_default(["no", "native"])
    assert ran(op) == "native"
    assert caplog.messages == [notice]


def test_d42_entries_behind_a_catch_all_are_unreachable_and_visible(op, caplog):
    for _ in range(2):
        op.set_default(["native", "a"])
    assert caplog.messages == [
        f"vllm_ir.{op.name}.a: unreachable in the priority list behind native, which accepts "
        "everything. Put 'a' before it, or remove it."
    ]
    assert op.get_priority() == ["native"]
    assert op.dropped() == {"a": "unreachable behind native"}
    assert ran(op) == "native"
    (decision,) = [d for d in op.explain(X).decisions if d.provider == "a"]
    assert (decision.status, str(decision)) == ("unreachable", "unreachable behind native")


@pytest.mark.parametrize("set_list", ["set_default", "set_priority"])
def test_unknown_names_are_refused(op, set_list):
    op.register_impl("vllm_c")(same_as(toy_native))
    text = (
        f"vllm_ir.{op.name}: unknown provider 'vlm_c'. Known: a, b, c, native, vllm_c. "
        "Did you mean 'vllm_c'?"
    )
    with raises_exactly(UnknownNameError, text):
        getattr(op, set_list)(["a", "vlm_c"])
    assert issubclass(UnknownNameError, ValueError)
    assert issubclass(UnknownNameError, KeyError)
    assert op.unknown_provider_message("vlm_c") == text
    assert op.unknown_provider_message("vllm_c") is None
    assert ran(op) == "native"


@pytest.mark.parametrize("set_list", ["set_default", "set_priority"])
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("a,b", "a priority must be a list of provider names, got str."),
        (None, "a priority must be a list of provider names, got NoneType."),
        (5, "a priority must be a list of provider names, got int."),
        ({"a"}, "a priority must be a list of provider names, got set."),
        (["a", 5], "a provider name must be a string, got int."),
        ([None], "a provider name must be a string, got NoneType."),
    ],
)
def test_a_priority_is_a_list_of_strings(op, set_list, given, text):
    with raises_exactly(IrTypeError, f"vllm_ir.{op.name}: {text}"):
        getattr(op, set_list)(given)
    assert ran(op) == "native"


# ---- scopes --------------------------------------------------------------------------------------


def test_scopes_nest_and_restore(op):
    op.set_default(["c"])
    with op.set_priority(["a"]):
        assert ran(op) == "a"
        with op.set_priority(["b"]):
            assert ran(op) == "b"
            with op.set_priority([]):
                assert ran(op) == "native"
            assert ran(op) == "b"
        assert ran(op) == "a"
    assert ran(op) == "c"


def test_a_scope_takes_the_place_of_the_default_and_the_platform(op):
    picky(op, "no", False)
    op.set_default(["c"])
    op.set_platform_default(["b"])
    with op.set_priority(["no"]):
        assert op.get_priority() == ["no", "native"]
        assert ran(op) == "native"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit, SystemExit])
def test_a_scope_ends_with_an_exception(op, error):
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.raises(error))
        stack.enter_context(op.set_priority(["a"]))
        stack.enter_context(op.set_priority(["b"]))
        assert ran(op) == "b"
        raise error
    assert ran(op) == "native"


def test_scopes_of_two_ops_are_independent(op):
    other = new_toy("a", "b")
    with op.set_priority(["a"]), other.set_priority(["b"]):
        assert (ran(op), ran(other)) == ("a", "b")
        with op.set_priority(["c"]):
            assert (ran(op), ran(other)) == ("c", "b")
        assert (ran(op), ran(other)) == ("a", "b")
    assert (ran(op), ran(other)) == ("native", "native")


def test_a_list_is_checked_before_the_scope_opens(op):
    with pytest.raises(UnknownNameError):
        op.set_priority(["nobody"])
    scope = op.set_priority(["a"])
    assert ran(op) == "native"  # made, not entered
    with scope:
        assert ran(op) == "a"


def test_a_scope_may_be_used_again_and_not_twice_at_once(op):
    scope = op.set_priority(["a"])
    for _ in range(2):
        with scope:
            assert ran(op) == "a"
    with scope:
        text = (
            f"vllm_ir.{op.name}: this priority scope is open already. "
            "Call set_priority again for a nested one."
        )
        with raises_exactly(IrRuntimeError, text):
            scope.__enter__()
        assert ran(op) == "a"
    assert ran(op) == "native"
    with raises_exactly(IrRuntimeError, f"vllm_ir.{op.name}: this priority scope is not open."):
        scope.__exit__(None, None, None)


def test_a_scope_object_can_t_be_made_by_hand():
    with pytest.raises(TypeError, match=r"cannot create .vllm_ir\._C\.Scope. instances"):
        _C.Scope()


def test_a_change_of_the_default_inside_a_scope_shows_after_it(op):
    with op.set_priority(["a"]):
        op.set_default(["b"])
        assert ran(op) == "a"
    assert ran(op) == "b"


def test_an_impl_registered_inside_a_scope_counts_there_and_after(op):
    with op.set_priority(["a"]):
        op.register_impl("new")(same_as(toy_native))
        assert ran(op) == "a"
        with op.set_priority(["new"]):
            assert ran(op) == "new"


def test_maybe_inplace_has_the_scopes_of_its_op():
    op = new_pair("fast")
    with op.set_priority(["native"]), runs(op, native=1):
        op.maybe_inplace(torch.ones(2), torch.ones(2))
    with pytest.raises(AttributeError):
        op.maybe_inplace.set_default  # noqa: B018


def test_entering_scopes_keeps_no_memory(op):
    with op.set_priority(["a", "b"]), op.set_priority(["b"]):
        pass
    tables = _C.interned_tables(op.name)
    for _ in range(200):
        with op.set_priority(["a", "b"]), op.set_priority(["b"]):
            op(X)
    assert _C.interned_tables(op.name) == tables


# ---- threads -------------------------------------------------------------------------------------


def in_thread(f, context=None):
    result = []
    run = (lambda: context.run(f)) if context else f
    thread = threading.Thread(target=lambda: result.append(run()))
    thread.start()
    thread.join()
    return result[0]


def test_another_thread_sees_the_default(op):
    op.set_default(["c"])
    with op.set_priority(["a"]):
        assert in_thread(lambda: ran(op)) == "c"
        assert ran(op) == "a"


def test_threads_have_scopes_of_their_own(op):
    both_inside, seen = threading.Barrier(2), {}

    def work(provider):
        with op.set_priority([provider]):
            both_inside.wait(10)
            seen[provider] = op.dispatch(X).provider
            both_inside.wait(10)
        seen["after " + provider] = op.dispatch(X).provider

    threads = [threading.Thread(target=work, args=(p,)) for p in ("a", "b")]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert seen == {"a": "a", "b": "b", "after a": "native", "after b": "native"}


def test_a_copied_context_carries_the_scope_as_long_as_it_is_open(op):
    with op.set_priority(["a"]):
        context = contextvars.copy_context()
        assert in_thread(lambda: ran(op), context) == "a"
    assert in_thread(lambda: ran(op), context) == "native"
    assert context.run(ran, op) == "native"


def test_a_default_set_by_another_thread_counts_here(op):
    in_thread(lambda: op.set_default(["b"]))
    assert ran(op) == "b"


def test_calls_race_with_changes(op):
    stop, wrong = threading.Event(), []

    def call():
        while not stop.is_set():
            got = op(X, None, 2.0)
            if got.tolist() != [2.0, 2.0]:
                wrong.append(got)

    threads = [threading.Thread(target=call) for _ in range(2)]
    before = sum(counts(op).values())
    for t in threads:
        t.start()
    for i in range(300):
        op.set_default(["abc"[i % 3]])
        with op.set_priority(["b", "a"]):
            op(X, None, 2.0)
    stop.set()
    for t in threads:
        t.join()
    assert wrong == []
    assert sum(counts(op).values()) >= before + 300


# ---- async tasks ---------------------------------------------------------------------------------


def test_a_scope_belongs_to_its_task(op):
    async def task(provider, first, second):
        with op.set_priority([provider]):
            first.set()
            await second.wait()
            await asyncio.sleep(0)
            return ran(op)

    async def main():
        first, second = asyncio.Event(), asyncio.Event()
        tasks = [task("a", first, second), task("b", second, first)]
        return await asyncio.gather(*tasks), ran(op)

    assert asyncio.run(main()) == (["a", "b"], "native")


def test_a_child_task_inherits_the_scope_until_it_closes(op):
    seen = []

    async def child(closed):
        seen.append(ran(op))
        await closed.wait()
        seen.append(ran(op))
        with op.set_priority(["b"]):
            seen.append(ran(op))
        seen.append(ran(op))

    async def main():
        closed = asyncio.Event()
        with op.set_priority(["a"]):
            task = asyncio.create_task(child(closed))
            await asyncio.sleep(0)
        closed.set()
        await task

    asyncio.run(main())
    assert seen == ["a", "native", "b", "native"]


def test_a_child_task_with_a_scope_of_another_op_outlives_the_outer_scope(op):
    other, seen = new_toy("a"), []

    async def child(opened, closed):
        with other.set_priority(["a"]):
            seen.append((ran(op), ran(other)))
            opened.set()
            await closed.wait()
            seen.append((ran(op), ran(other)))
        seen.append((ran(op), ran(other)))

    async def main():
        opened, closed = asyncio.Event(), asyncio.Event()
        with op.set_priority(["a"]):
            task = asyncio.create_task(child(opened, closed))
            await opened.wait()
        closed.set()
        await task

    asyncio.run(main())
    assert seen == [("a", "a"), ("native", "a"), ("native", "native")]


def test_a_call_in_an_executor_sees_the_scope_with_to_thread(op):
    async def main():
        with op.set_priority(["a"]):
            by_context = await asyncio.to_thread(ran, op)
            loop = asyncio.get_running_loop()
            return by_context, await loop.run_in_executor(None, ran, op)

    assert asyncio.run(main()) == ("a", "native")


def test_an_async_scope_ends_with_a_cancelled_task(op):
    async def child():
        with op.set_priority(["a"]):
            await asyncio.sleep(10)

    async def main():
        task = asyncio.create_task(child())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return ran(op)

    assert asyncio.run(main()) == "native"


# ---- generators ----------------------------------------------------------------------------------


def generator(op, provider):
    with op.set_priority([provider]):
        yield ran(op)
        yield ran(op)


def test_a_generator_that_is_used_up_leaves_nothing_behind(op):
    assert list(generator(op, "a")) == ["a", "a"]
    assert ran(op) == "native"


def test_a_closed_generator_ends_its_scope(op):
    g = generator(op, "a")
    assert next(g) == "a"
    g.close()
    assert ran(op) == "native"


def test_a_generator_that_is_collected_ends_its_scope(op):
    g = generator(op, "a")
    next(g)
    del g
    gc.collect()
    assert ran(op) == "native"


def test_a_generator_that_ends_in_another_context_ends_its_scope(op):
    g = generator(op, "a")
    assert contextvars.copy_context().run(next, g) == "a"
    assert ran(op) == "native"
    assert list(g) == ["native"]  # it goes on here, where nobody opened a scope
    assert ran(op) == "native"


def test_scopes_that_close_out_of_order(op):
    first, second = op.set_priority(["a"]), op.set_priority(["b"])
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert ran(op) == "native"
    with op.set_priority(["c"]):
        assert ran(op) == "c"
    assert ran(op) == "native"


def test_a_scope_left_in_another_context_may_be_opened_again():
    script = """
        import contextvars, torch, vllm_ir as ir
        op = ir.ops.rms_norm
        scope = op.set_priority(["native"])
        here = contextvars.copy_context()
        here.run(scope.__enter__)
        scope.__exit__(None, None, None)
        here.run(scope.__enter__)
        scope.__exit__(None, None, None)
        print(here.run(op.get_priority), op.get_priority())
        with op.set_priority(["native"]):
            print(here.run(op.get_priority))
    """
    done = run_python("-c", textwrap.dedent(script), timeout=30)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "['vllm_c', 'native'] ['vllm_c', 'native']"


# ---- strict mode ---------------------------------------------------------------------------------


def test_strict_mode_refuses_to_name_an_unsupported_provider(op):
    op.register_impl("off", supported=False, unsupported_reason="no such chip")(same_as(toy_native))
    op.register_impl("dead", supported=False)(same_as(toy_native))
    op.set_default(["off", "a"])  # fine without
    assert op.dropped()["off"] == "no such chip"
    with op.set_priority(["dead", "a"]):
        assert op.dropped()["dead"] == "supported=False"
    ir.set_strict(True)
    for provider, reason in (("off", "no such chip"), ("dead", "supported=False")):
        text = (
            f"vllm_ir.{op.name}.{provider}: strict mode: unsupported here ({reason}). "
            "Remove it from the priority list."
        )
        for set_list in (op.set_default, op.set_priority):
            with raises_exactly(IrRuntimeError, text):
                set_list(["a", provider])


def test_strict_mode_raises_with_the_decisions_when_another_one_would_run(op):
    op.register_impl("ruled", supports_args=rules.is_given("y"))(same_as(toy_native))
    op.set_default(["ruled", "a", "b"])
    ir.set_strict(True)
    text = (
        f"vllm_ir.{op.name}.ruled: strict mode: the provider was asked for and would not run.\n"
        f"vllm_ir.{op.name}: a runs\n"
        '  ruled   rejected: y is None; needs is_given("y")\n'
        "  a       selected\n"
        "  b       unreachable behind a\n"
        "  native  not in the priority list\n"
        "  c       not in the priority list"
    )
    for call in (op, op.torch_op):
        with runs(op), raises_exactly(IrRuntimeError, text):
            call(X)
        with runs(op, ruled=1):
            call(X, X)
    ir.set_strict(False)
    assert ran(op) == "a"


def test_strict_mode_minds_the_first_of_a_scope_s_list(op):
    picky(op, "no", False)
    ir.set_strict(True)
    assert ran(op) == "native"
    with op.set_priority(["no", "a"]), runs(op), pytest.raises(IrRuntimeError, match="strict"):
        op(X)
    with op.set_priority(["a", "no"]):
        assert ran(op) == "a"


def test_strict_mode_has_nothing_against_a_platform_s_choice(op):
    picky(op, "no", False)
    op.set_default([])
    op.set_platform_default(["no", "b"])
    ir.set_strict(True)
    assert ran(op) == "b"


# ---- batch invariance ----------------------------------------------------------------------------


def test_d10_only_invariant_impls_are_chosen_when_asked(op):
    op.register_impl("invariant", batch_invariant=True)(same_as(toy_native))
    op.set_default(["a", "invariant"])
    assert ran(op) == "a"
    ir.set_batch_invariant(True)
    assert ran(op) == "invariant"
    reason = "not batch-invariant (VLLM_BATCH_INVARIANT is on)"
    assert op.dropped() == {"a": reason}
    (decision,) = [d for d in op.explain(X).decisions if d.provider == "a"]
    assert (decision.status, decision.reason) == ("unsupported", reason)
    with op.set_priority(["b"]):
        assert ran(op) == "native"
    ir.set_batch_invariant(False)
    assert ran(op) == "a"


def test_d10_the_switch_reaches_open_scopes(op):
    with op.set_priority(["a"]):
        ir.set_batch_invariant(True)
        assert ran(op) == "native"
        ir.set_batch_invariant(False)
        assert ran(op) == "a"


@pytest.mark.parametrize("op", [ir.ops.rms_norm, ir.ops.fused_add_rms_norm], ids=str)
def test_d10_a_row_s_result_does_not_depend_on_the_batch(op):
    ir.set_batch_invariant(True)
    generator = torch.Generator().manual_seed(1)
    tensors = [
        torch.randn(600, 96, generator=generator)
        for _ in (op.activations if op.allow_inplace else ("x",))
    ]
    w = torch.randn(96, generator=generator)

    def run(first, last):
        out = op(*[t[first:last] for t in tensors], w, 1e-6)
        return torch.stack(out) if isinstance(out, tuple) else out[None]

    for provider in op.supported_providers():
        with op.set_priority([provider]):
            assert op.dispatch(*tensors, w, 1e-6).provider == provider
            whole = run(0, 600)
            for size in (255, 1):
                step = [run(i, i + size) for i in range(0, 600, size)]
                assert torch.equal(torch.cat(step, dim=1), whole)


def test_d13_batch_invariant_with_a_variance_size():
    op = ir.ops.rms_norm
    ir.set_batch_invariant(True)
    x, w = torch.randn(4, 16), torch.randn(16)
    expected = op.impls["native"].impl_fn(x, w, 1e-6, 8)
    for provider in op.supported_providers():
        with op.set_priority([provider, "native"]), runs(op, **{provider: 1}):
            torch.testing.assert_close(op(x, w, 1e-6, 8), expected)


@pytest.mark.parametrize("switch", [ir.set_strict, ir.set_batch_invariant])
@pytest.mark.parametrize(("value", "kind"), [("0", "str"), (1, "int"), (None, "NoneType")])
def test_a_switch_is_a_bool(switch, value, kind):
    text = f"vllm_ir.{switch.__name__}: on must be a bool, got {kind}."
    with raises_exactly(IrTypeError, text):
        switch(value)
    assert not _C.is_strict()
    assert not _C.is_batch_invariant()


def test_the_environment_sets_the_start_of_both_switches():
    script = "from vllm_ir import _C; print(_C.is_strict(), _C.is_batch_invariant())"
    done = run_python("-c", script, env={"VLLM_IR_STRICT": "1", "VLLM_BATCH_INVARIANT": "1"})
    assert (done.returncode, done.stdout) == (0, "True True\n")


# ---- dispatch inside dispatch --------------------------------------------------------------------


def test_an_impl_may_call_another_op_and_change_a_priority(op):
    other = new_toy("a")

    @op.register_impl("outer")
    def outer(x: torch.Tensor, y: torch.Tensor | None = None, scale: float = 1.0,
              n: int | None = None, flag: bool = False) -> torch.Tensor:  # fmt: skip
        with other.set_priority(["a"]):
            inner = other(x, y, scale)
        op.set_default(["b"])
        return inner + 0

    op.set_default(["outer"])
    with runs(op, outer=1), runs(other, a=1):
        assert op(X, None, 2.0).tolist() == [2.0, 2.0]
    assert ran(op) == "b"
    assert ran(other) == "native"


def test_a_predicate_that_changes_the_priority_does_not_change_the_running_call(op):
    def switch(*args):
        op.set_default(["c"])
        return False

    op.register_impl("switch", supports_args=switch)(same_as(toy_native))
    op.set_default(["switch", "a"])
    with runs(op, a=1):
        op(X)
    assert ran(op) == "c"


# ---- memo ----------------------------------------------------------------------------------------


def memo_op(answer, memoise=True):
    op, asked = new_toy("a"), []

    def ask(*args):
        asked.append(args)
        return answer(*args)

    op.register_impl("asked", supports_args=ask, memoise=memoise)(same_as(toy_native))
    op.set_default(["asked", "a"])
    return op, asked


def test_a_callable_is_asked_at_every_call_unless_memoised():
    for memoise, times in ((False, 3), (True, 1)):
        op, asked = memo_op(lambda *args: True, memoise)
        for _ in range(3):
            with runs(op, asked=1):
                op(X)
        assert len(asked) == times


def test_the_memo_ignores_the_batch_and_nothing_else():
    op, asked = memo_op(lambda x, *rest: x.dtype == torch.float32)
    x = torch.ones(4, 8)
    for rows in (1, 4, 9):
        op(torch.ones(rows, 8))
    assert len(asked) == 1
    others = [
        (torch.ones(4, 9),),
        (x.double(),),
        (torch.ones(4, 16)[:, :8],),
        (torch.ones(8, 4).t(),),
        (x, x),
        (x, None, 2.0),
        (x, None, 1.0, 3),
        (x, None, 1.0, 0),
        (x, None, 1.0, None, True),
        (torch.ones(33)[1:].view(4, 8),),
    ]
    for args in others:
        before = len(asked)
        op(*args)
        assert len(asked) == before + 1, args


def test_a_memoised_callable_tells_texts_apart():
    asked = []

    def native(x: Tensor, mode: str = "none") -> Tensor:
        return x * 1

    def takes_it(x: Tensor, mode: str = "none") -> bool:
        asked.append(mode)
        return mode != "no"

    op = ir.register_op(name=new_name("texts"))(native)
    op.register_impl("mine", supports_args=takes_it, memoise=True)(same_as(native))
    texts = ["none", "no", "", "a long one, of more than one word", "a long one, of more than two"]
    x = torch.ones(2)
    with op.set_priority(["mine", "native"]), runs(op, mine=8, native=2):
        for text in texts:
            op(x, text), op(x, text)
    assert asked == texts


def test_a_memoised_no_is_a_no_with_its_reason():
    op, asked = memo_op(lambda *args: False)
    for _ in range(3):
        with runs(op, a=1):
            op(X)
    assert len(asked) == 1
    assert op.explain(X).decisions[0].reason == "supports_args returned False"
    assert op.report().impls[1].provider == "a"
    assert op.report().impls[2].rejections == {"supports_args said no": 3}


def test_a_verdict_from_an_error_is_not_remembered():
    answers = iter([ValueError("first"), True])

    def answer(*args):
        value = next(answers)
        if isinstance(value, Exception):
            raise value
        return value

    op, asked = memo_op(answer)
    with runs(op, a=1):
        op(X)
    with runs(op, asked=2):
        op(X)
        op(X)
    assert len(asked) == 2


def test_strict_mode_and_a_memo():
    op, _ = memo_op(lambda *args: False)
    op(X)
    ir.set_strict(True)
    with pytest.raises(IrRuntimeError, match="supports_args returned False"):
        op(X)


def test_a_thread_that_ends_inside_its_scope_leaves_nothing_behind():
    op = new_toy("mine")
    before = _C.open_scopes()
    thread = threading.Thread(target=lambda: op.set_priority(["mine"]).__enter__())
    thread.start()
    thread.join()
    del thread
    gc.collect()
    assert op.get_priority() == ["native"]
    assert _C.open_scopes() == before
