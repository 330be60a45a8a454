# SPDX-License-Identifier: Apache-2.0
"""Long runs: nothing leaks, and threads never see another thread's choice or a wrong result."""

import gc
import resource
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from toys import counts, new_name, new_pair, new_toy

import vllm_ir as ir
from vllm_ir import _C

RMS = ir.ops.rms_norm
MIB = 2**20
# What the allocator may keep by chance. A block kept at each of 200 000 calls is twice as much.
SLACK = 3 * MIB


def resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def growth_of(step, times):
    """Return how much memory `times` steps keep, after as many that warm up a tenth of it."""
    for _ in range(times // 10):
        step()
    gc.collect()
    before = resident_bytes()
    for _ in range(times):
        step()
    gc.collect()
    return resident_bytes() - before


needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")


def kinds_of_calls():
    x, w, r = torch.randn(2, 16), torch.randn(16), torch.randn(2, 16)
    fused, toy, pair = ir.ops.fused_add_rms_norm, new_toy("mine"), new_pair("mine")
    wide = torch.randn(2, 16, dtype=torch.float64)
    toy.set_default(["mine"])
    return {
        "entry": lambda: RMS(x, w, 1e-6),
        "keywords": lambda: RMS(x=x, weight=w, epsilon=1e-6),
        "clones": lambda: fused(x, r, w, 1e-6),
        "donates": lambda: fused.maybe_inplace(x, r, w, 1e-6),
        "falls to native": lambda: RMS(wide, None, 1e-6),
        "python provider": lambda: toy(x, w, 2.0, 3, True),
        "python in place": lambda: pair(x, r),
        "python donates": lambda: pair.maybe_inplace(x, r, 0.5),
        "torch operator": lambda: RMS.torch_op(x, w, 1e-6),
        "an error": lambda: refused(RMS, x.int(), None, 1e-6),
        "explain": lambda: RMS.explain(x, w, 1e-6),
        "dispatch": lambda: RMS.dispatch(x, w, 1e-6),
    }


def refused(op, *args):
    with pytest.raises(ir.IrTypeError):
        op(*args)


COUNTS = {
    "entry": 200_000,
    "keywords": 50_000,
    "clones": 50_000,
    "donates": 50_000,
    "python provider": 30_000,
    "falls to native": 20_000,
}


@needs_proc
@pytest.mark.parametrize("kind", kinds_of_calls())
def test_calls_leak_nothing(kind):
    """More than 400 000 calls in all; the slower kinds make fewer."""
    call = kinds_of_calls()[kind]
    times = COUNTS.get(kind, 10_000)
    RMS.set_default(["vllm_c", "native"])
    with torch.inference_mode():
        assert growth_of(call, times) < SLACK


@pytest.mark.parametrize("kind", kinds_of_calls())
def test_calls_leave_reference_counts_alone(kind):
    x, w = torch.randn(2, 16), torch.randn(16)
    epsilon, scale = float("0.125"), float("0.5")
    toy = new_toy("mine")
    toy.set_default(["mine"])
    objects = (x, w, epsilon, scale, RMS, toy, RMS.torch_op, None, True, toy.impls["mine"].impl_fn)
    calls = (
        lambda: RMS(x, w, epsilon),
        lambda: RMS(x=x, weight=w, epsilon=epsilon),
        lambda: toy(x, w, scale, None, True),
        lambda: toy(x, flag=True, scale=scale),
        lambda: RMS.torch_op(x, w, epsilon),
        lambda: RMS.explain(x, w, epsilon),
    )
    other = kinds_of_calls()[kind]
    with torch.inference_mode():
        for call in (*calls, other):
            call()
        gc.collect()
        before = [sys.getrefcount(o) for o in objects]
        for _ in range(50):
            for call in (*calls, other):
                call()
        gc.collect()
        after = [sys.getrefcount(o) for o in objects]
    gained = [a - b for a, b in zip(after, before, strict=True)]
    # None and True are counted for many reasons; fifty calls would show.
    assert max(gained) < 20, gained
    assert gained[:4] == [0, 0, 0, 0]


@needs_proc
def test_a_million_scopes_keep_nothing():
    op = new_toy("a", "b")
    lists = [["a"], ["b"], ["a", "b"], ["b", "a", "native"]]
    x = torch.ones(2)

    def enter():
        for names in lists:
            with op.set_priority(names):
                pass

    enter()
    tables = _C.interned_tables(op.name)
    assert growth_of(enter, 250_000) < SLACK
    assert _C.interned_tables(op.name) == tables
    for names in lists:
        with op.set_priority(names), op.set_priority(["b"]), op.set_priority(names):
            assert op.dispatch(x).provider == names[0]
    assert op.get_priority() == ["native"]


@needs_proc
def test_changing_the_default_keeps_one_table_for_each_list():
    op = new_toy("a", "b")

    def change():
        op.set_default(["a"])
        op.set_default(["b", "a"])
        ir.set_batch_invariant(True)
        ir.set_batch_invariant(False)

    change()
    tables = _C.interned_tables(op.name)
    assert growth_of(change, 5_000) < SLACK
    assert _C.interned_tables(op.name) == tables


# --- threads


def run_threads(*workers):
    """Run the workers at once; an error in any of them is raised here."""
    errors = []

    def guarded(worker):
        try:
            worker()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(w,)) for w in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.fixture
def quick_switches():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def numbered_op():
    """Return an op whose providers p0 ... p3 give their number, and native -1."""

    def number(x: torch.Tensor) -> torch.Tensor:
        return torch.full_like(x, -1.0)

    op = ir.register_op(number, name=new_name("number"))
    for i in range(4):

        def numbered(x: torch.Tensor, i: int = i) -> torch.Tensor:
            return torch.full_like(x, float(i))

        op.register_impl(f"p{i}")(_without_default(numbered))
    op.set_default(["p0"])
    return op


def _without_default(fn):
    def provider(x: torch.Tensor) -> torch.Tensor:
        return fn(x)

    return provider


def test_priorities_change_under_running_calls(quick_switches):
    op = numbered_op()
    x = torch.zeros(1)
    before = sum(counts(op).values())
    done = threading.Event()
    calls = [0, 0]

    def change(first, second):
        def worker():
            for _ in range(12_500):
                op.set_default([first])
                op.set_default([second, first])

        return worker

    def call(index):
        def worker():
            with torch.no_grad():
                while not done.is_set():
                    assert op(x).item() in (0.0, 1.0, 2.0, 3.0)
                    calls[index] += 1

        return worker

    def changes():
        pairs = (("p0", "p1"), ("p1", "p2"), ("p2", "p3"), ("p3", "p0"))
        try:
            run_threads(*(change(*pair) for pair in pairs))
        finally:
            done.set()

    run_threads(call(0), call(1), changes)
    assert min(calls) > 0
    assert sum(counts(op).values()) - before == sum(calls)


def test_scopes_of_threads_are_their_own(quick_switches):
    op = numbered_op()
    x = torch.zeros(1)

    def worker(i):
        def run():
            assert op(x).item() == 0.0
            for _ in range(2_000):
                with op.set_priority([f"p{i}"]):
                    assert op(x).item() == i
                    with op.set_priority(["native"]):
                        assert op(x).item() == -1.0
                    assert op.get_priority() == [f"p{i}"]
                    assert op(x).item() == i
                assert op(x).item() == 0.0

        return run

    run_threads(*map(worker, range(4)))
    assert op.get_priority() == ["p0"]


def test_threads_that_call_one_op_get_their_own_results(quick_switches):
    def worker(seed):
        x = torch.randn(3, 32, generator=torch.Generator().manual_seed(seed))
        want = RMS.impls["native"].impl_fn(x, None, 1e-6)

        def run():
            with torch.no_grad():
                for i in range(1_500):
                    got = RMS(x, None, 1e-6) if i % 2 else RMS.torch_op(x, None, 1e-6)
                    assert torch.allclose(got, want, atol=1e-5)

        return run

    run_threads(*map(worker, range(4)))


def test_registration_while_others_call(quick_switches):
    op = numbered_op()
    x = torch.zeros(1)
    done = threading.Event()

    def register():
        try:
            for i in range(200):
                op.register_impl(f"late_{i}")(op.impls["p0"].impl_fn)
                op.set_default([f"late_{i}", "p0"])
        finally:
            done.set()

    def call():
        with torch.no_grad():
            while not done.is_set():
                assert op(x).item() == 0.0
                assert op.explain(x).selected in op.impls

    run_threads(register, call, call)
    assert op.dispatch(x).provider == "late_199"


@pytest.mark.parametrize("call", ["op", "torch_op"])
def test_a_large_call_lets_other_python_threads_run(call):
    """Python takes its lock from no thread for a minute: what moves, moves since the call let go.

    The other thread offers the lock at each step, so that the call gets it back at once.
    """
    x, w = torch.randn(2048, 8192), torch.randn(8192)
    target = RMS if call == "op" else RMS.torch_op
    steps, running, stop = [0], threading.Event(), threading.Event()

    def count():
        running.set()
        while not stop.is_set():
            steps[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    interval, threads = sys.getswitchinterval(), torch.get_num_threads()
    sys.setswitchinterval(60.0)
    torch.set_num_threads(1)
    try:
        with torch.no_grad(), RMS.set_priority(["vllm_c"]):
            thread.start()
            running.wait()
            before = steps[0]
            target(x[:1], w, 1e-6)  # small: not worth letting go
            small, before = steps[0] - before, steps[0]
            target(x, w, 1e-6)
            large = steps[0] - before
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        torch.set_num_threads(threads)
        thread.join()
    assert large > 0
    assert call != "op" or small == 0
