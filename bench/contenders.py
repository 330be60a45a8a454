# SPDX-License-Identifier: Apache-2.0
"""The ways to compute one op that bench_ops.py compares.

A contender either allocates its result or writes into memory that exists before ("out"). For large
matrices a fresh allocation costs as much as a norm, so `keep_freed_memory` makes all results land
in memory that has been used before.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from stopwatch import Case
from torch import Tensor

import vllm_ir as ir

EPSILON = 1e-6
GATED = {"silu_and_mul": F.silu, "gelu_and_mul": F.gelu}


@dataclass(frozen=True)
class Problem:
    """One cell of the grid.

    Attributes:
        op: name of an op of the norms or of the gated activations.
        rows: size of the first dimension.
        width: size of the last dimension of a result.
        dtype: dtype of all tensors.
    """

    op: str
    rows: int
    width: int
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.op} {str(self.dtype).removeprefix('torch.')} {self.rows}x{self.width}"

    @property
    def bytes_moved(self) -> int:
        """Bytes that must be read and written once, the weight included."""
        matrices = {"rms_norm": 2, "fused_add_rms_norm": 4}.get(self.op, 3)
        weights = 0 if self.op in GATED else 1
        return (matrices * self.rows + weights) * self.width * self.dtype.itemsize

    @property
    def bytes_copied(self) -> int:
        """Bytes that the copy row reads and writes."""
        return 2 * self.rows * self.width * self.dtype.itemsize


def contenders(problem: Problem, with_compiled: bool) -> list[Case]:
    """Return the rows of one problem; each result is checked against native before it is timed."""
    if problem.op in GATED:
        return gated_cases(problem, with_compiled)
    make = rms_norm_cases if problem.op == "rms_norm" else fused_add_cases
    return make(problem, with_compiled)


def arguments(problem: Problem, names: dict[str, Any]) -> tuple[Any, ...]:
    """Return the arguments of the op among the names of its rows."""
    if problem.op in GATED:
        return (names["gated"],)
    residual = () if problem.op == "rms_norm" else (names["residual"],)
    return (names["x"], *residual, names["w"], names["eps"])


def inputs(problem: Problem) -> dict[str, Any]:
    """Make seeded operands, and a destination that has been touched."""
    torch.manual_seed(0)
    shape = (problem.rows, problem.width)
    return {
        "x": torch.randn(shape).to(problem.dtype),
        "residual": torch.randn(shape).to(problem.dtype),
        "gated": torch.randn(problem.rows, 2 * problem.width).to(problem.dtype),
        "out": torch.zeros(shape, dtype=problem.dtype),
        "w": (1 + 0.1 * torch.randn(problem.width)).to(problem.dtype),
        "eps": EPSILON,
        "size": (problem.width,),
    }


def native_of(name: str) -> Callable[..., Any]:
    """Return the Python function that defines the op."""
    function: Callable[..., Any] = ir.IrOp.registry[name].impls["native"].impl_fn
    return function


def rms_norm_cases(problem: Problem, with_compiled: bool) -> list[Case]:
    """rms_norm allocates or writes to `out`."""
    names = inputs(problem)
    native = native_of("rms_norm")
    expected = native(names["x"], names["w"], EPSILON)

    def right(value: Tensor) -> None:
        close(value, expected)

    def case(label: str, statement: str, **more: Any) -> Case:
        return Case(label, statement, names | more, check=right)

    cases = [
        Case("copy", "out.copy_(x)", names | {"out": torch.zeros_like(names["x"])}),
        case("native", "native(x, w, eps)", native=native),
        case("F.rms_norm", "f(x, size, w, eps)", f=F.rms_norm),
        case("vllm_c", "op(x, w, eps)", op=ir.ops.rms_norm),
    ]
    if with_compiled:
        cases += [
            case("compiled", "f(x, w, eps)", f=compiled(native)),
            case("compiled out", "f(x, w, eps, out)", f=compiled(native_out)),
        ]
    return cases


def fused_add_cases(problem: Problem, with_compiled: bool) -> list[Case]:
    """fused_add_rms_norm allocates both results, or writes into memory that is there ("out").

    vllm_c overwrites its inputs; the compiled code gets two destinations.
    """
    names = inputs(problem)
    native = native_of("fused_add_rms_norm")
    expected = native(names["x"], names["residual"], names["w"], EPSILON)

    def right(value: tuple[Tensor, Tensor]) -> None:
        close(value[0], expected[0])
        close(value[1], expected[1])

    def case(label: str, statement: str, **more: Any) -> Case:
        fresh = {"x": names["x"].clone(), "residual": names["residual"].clone()}
        return Case(label, statement, names | fresh | more, check=right)

    op = ir.ops.fused_add_rms_norm
    cases = [
        Case("copy", "out.copy_(x)", names),
        case("native", "native(x, residual, w, eps)", native=native),
        case("vllm_c", "op(x, residual, w, eps)", op=op),
        case("vllm_c out", "op(x, residual, w, eps)", op=op.maybe_inplace),
    ]
    if with_compiled:
        cases += [
            case("compiled", "f(x, residual, w, eps)", f=compiled(native)),
            case(
                "compiled out",
                "f(x, residual, w, eps, out, sum_out)",
                f=compiled(fused_native_out),
                sum_out=torch.zeros_like(names["x"]),
            ),
        ]
    return cases


def gated_cases(problem: Problem, with_compiled: bool) -> list[Case]:
    """A gated activation: what a model writes by hand, the op, and the op's meaning compiled."""
    names = inputs(problem)
    native = native_of(problem.op)
    expected = native(names["gated"])
    width, activation = problem.width, GATED[problem.op]

    def by_hand(x: Tensor) -> Tensor:
        return activation(x[..., :width]) * x[..., width:]

    def native_out(x: Tensor, out: Tensor) -> Tensor:
        return out.copy_(native(x))

    def right(value: Tensor) -> None:
        # Compiled code leaves out the rounding between the activation and the product.
        eps = 2 * torch.finfo(problem.dtype).eps
        torch.testing.assert_close(value, expected, atol=1e-5, rtol=eps)

    def case(label: str, statement: str, **more: Any) -> Case:
        return Case(label, statement, names | more, check=right)

    cases = [
        Case("copy", "out.copy_(x)", names | {"out": torch.zeros_like(names["x"])}),
        case("native", "f(gated)", f=native),
        case(f"F.{activation.__name__}(gate) * up", "f(gated)", f=by_hand),
        case("vllm_c", "op(gated)", op=ir.IrOp.registry[problem.op]),
    ]
    if with_compiled:
        cases += [
            case("compiled", "f(gated)", f=compiled(native)),
            case("compiled out", "f(gated, out)", f=compiled(native_out)),
        ]
    return cases


def native_out(x: Tensor, weight: Tensor, epsilon: float, out: Tensor) -> Tensor:
    """Native rms_norm into `out`; compiled, there is no other memory."""
    result: Tensor = out.copy_(native_of("rms_norm")(x, weight, epsilon))
    return result


def fused_native_out(
    x: Tensor, residual: Tensor, weight: Tensor, epsilon: float, out: Tensor, sum_out: Tensor
) -> tuple[Tensor, Tensor]:
    """Native fused_add_rms_norm into `out` and `sum_out`."""
    normed, total = native_of("fused_add_rms_norm")(x, residual, weight, epsilon)
    return out.copy_(normed), sum_out.copy_(total)


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile for each shape on its own: the best that Inductor can do.

    The number of threads goes into the code; given as an option it is also part of the key of
    Inductor's cache.
    """
    return torch.compile(
        function, fullgraph=True, dynamic=False, options={"cpp.threads": torch.get_num_threads()}
    )


def forget_compiled() -> None:
    """Drop all compiled code: it has the number of threads written into it."""
    compiled.cache_clear()
    torch.compiler.reset()


def keep_freed_memory() -> None:
    """Tell glibc to keep what is freed, so that a large result costs no page faults."""
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    trim_threshold, mmap_max = -1, -4
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(mmap_max, 0)


def close(value: Tensor, expected: Tensor) -> None:
    """Raise unless both agree up to the order of a reduction."""
    torch.testing.assert_close(value, expected)
