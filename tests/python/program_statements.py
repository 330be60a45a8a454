# SPDX-License-Identifier: Apache-2.0
"""The statements that random programs are drawn from, by kind: each function returns a text.

They get the draw, which knows the values so far, and the name of a tensor to begin with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Statement = Callable[[Any, str], "str | None"]


def _assign(d: Any, text: str, count: int = 1) -> str:
    return f"{', '.join(d.new() for _ in range(count))} = {text}"


# ---- views ---------------------------------------------------------------------------------------


def columns(d: Any, x: str) -> str | None:
    room = d.value(x).shape[-1]
    if room < 2:
        return None
    start = d.rng.randrange(room - 1)
    return _assign(d, f"{x}[..., {start}:{d.rng.randint(start + 1, room)}]")


def rows(d: Any, x: str) -> str | None:
    text = d.rng.choice(("1:", ":-1", "::2", "2:4", ":1", "-2:", "1::2"))
    return _assign(d, f"{x}[{text}]")


def pick(d: Any, x: str) -> str | None:
    if d.value(x).dim() < 2:
        return None
    i = d.rng.choice((0, -1))
    return _assign(d, d.rng.choice((f"{x}[{i}]", f"{x}.select(0, {i})", f"{x}.select(-1, 0)")))


def swap(d: Any, x: str) -> str | None:
    if d.value(x).dim() < 2:
        return None
    return _assign(d, d.rng.choice((f"{x}.transpose(0, 1)", f"{x}.mT", f"{x}.transpose(-1, 0)")))


def stretch(d: Any, x: str) -> str | None:
    if d.value(x).dim() > 3:
        return None
    text = d.rng.choice((f"{x}.unsqueeze(0)", f"{x}.unsqueeze(-1)", f"{x}.unsqueeze(1)"))
    return _assign(d, text)


def squeeze(d: Any, x: str) -> str | None:
    found = d.pick(lambda t: 1 in t.shape)
    return found and _assign(d, f"{found}.squeeze()")


def flat(d: Any, x: str) -> str | None:
    forms = ("view(-1)", "reshape(-1)", "flatten()", "view(-1, 4)", "reshape(4, -1)", "reshape(-1)")
    return _assign(d, f"{x}.{d.rng.choice(forms)}")


def narrow(d: Any, x: str) -> str | None:
    size = d.value(x).shape[-1]
    return (size > 2 and _assign(d, f"{x}.narrow(-1, {size // 2}, {size - size // 2})")) or None


def split(d: Any, x: str) -> str | None:
    size = d.value(x).shape[-1]
    if size < 2 or size % 2:
        return None
    form = d.rng.choice((f"split({size // 2}, -1)", "chunk(2, -1)", f"split({size // 2}, dim=-1)"))
    return _assign(d, f"{x}.{form}", 2)


def split_rows(d: Any, x: str) -> str | None:
    n = d.value(x).shape[0]
    if not 2 <= n <= 6:
        return None
    if n <= 3 and d.rng.random() < 0.5:
        return _assign(d, f"{x}.unbind(0)", n)
    return _assign(d, f"{x}.tensor_split(2)", 2)


def expand(d: Any, x: str) -> str | None:
    shape = d.value(x).shape
    if len(shape) == 1 and d.rng.random() < 0.5:
        return _assign(d, f"{x}.expand(3, {shape[0]})")
    return _assign(d, f"{x}[:1].expand({', '.join(map(str, (4, *shape[1:])))})")


def strided(d: Any, x: str) -> str | None:
    t = d.value(x)
    if not t.is_contiguous() or t.numel() < 24 or t.storage_offset():
        return None
    form = d.rng.choice(("(4, 4), (4, 1), 4", "(2, 8), (8, 1), 8", "(3, 4), (1, 3), 2"))
    return _assign(d, f"torch.as_strided({x}, {form})")


def perhaps_same(d: Any, x: str) -> str | None:
    forms = ("contiguous()", "detach()", "float()", "view_as({0})", "reshape({0}.shape)")
    return _assign(d, f"{x}.{d.rng.choice(forms).format(x)}")


def other_dtype(d: Any, x: str) -> str | None:
    t = d.value(x)
    if t.dtype is torch.int32:
        return _assign(d, f"{x}.view(torch.float32)")
    return (t.dtype is torch.float32 and _assign(d, f"{x}.view(torch.int32)")) or None


def windows(d: Any, x: str) -> str | None:
    t = d.value(x)
    if t.dim() == 2 and t.shape[0] == t.shape[1]:
        return _assign(d, f"{x}.diagonal()")
    return (t.dim() == 1 and t.numel() < 32 and _assign(d, f"{x}.unfold(0, 2, 1)")) or None


VIEWS: list[Statement] = [
    *(columns, columns, rows, rows, pick, swap, stretch, squeeze, flat, flat, narrow),
    *(split, split, split_rows, expand, strided, perhaps_same, other_dtype, windows),
]


# ---- writes --------------------------------------------------------------------------------------


def add_(d: Any, x: str) -> str | None:
    y = d.like(x)
    forms = ("{0}.add_({1})", "{0} += {1}", "{0}.add_({1}, alpha=0.5)", "{0}.copy_({1})")
    return y and d.rng.choice(forms).format(x, y)


def scale_(d: Any, x: str) -> str | None:
    return d.rng.choice((f"{x}.mul_(0.5)", f"{x} *= 0.5", f"{x}.neg_()", f"{x}.fill_(3.0)"))


def write_part(d: Any, x: str) -> str | None:
    part = d.rng.choice((f"{x}[1:]", f"{x}[..., :2]", f"{x}[0]", f"{x}[..., ::2]"))
    return part + d.rng.choice((" = 2.0", " += 1.0", " *= -1.0", ".zero_()", ".add_(1.0)"))


def write_rows(d: Any, x: str) -> str | None:
    form = d.rng.choice(("[[0, 2]] = 5.0", "[{0} > 2.0] = 1.0", "[torch.tensor([1, 0])] += 1.0"))
    return x + form.format(x)


def masked_(d: Any, x: str) -> str | None:
    forms = ("{0}.masked_fill_({0} < 0, 1.0)", "{0}.index_fill_(0, torch.tensor([0]), 4.0)")
    return d.rng.choice((*forms, "{0}.clamp_(-2.0, 2.0)", "{0}.relu_()")).format(x)


def out_(d: Any, x: str) -> str | None:
    y, z = d.like(x), d.like(x)
    return None if d.constants else f"torch.add({y}, {z}, out={x})"


def each_(d: Any, x: str) -> str | None:
    y = d.like(x)
    return (y and y != x and f"torch._foreach_add_([{x}, {y}], 1.0)") or None


WRITES: list[Statement] = [add_, add_, add_, scale_, scale_, write_part, write_part, write_rows]
WRITES += [masked_, out_, each_]


# ---- values --------------------------------------------------------------------------------------


def arithmetic(d: Any, x: str) -> str | None:
    y = d.like(x)
    forms = ("{0} + {1}", "{0} - {1}", "torch.maximum({0}, {1})", "torch.where({0} > 0, {0}, {1})")
    return _assign(d, d.rng.choice(forms).format(x, y))


def scaled(d: Any, x: str) -> str | None:
    forms = ("{0} * 0.5", "{0} + 1.0", "{0}.clone()", "torch.relu({0})", "{0}.flip(0)", "-{0}")
    return _assign(d, d.rng.choice(forms).format(x))


def reduced(d: Any, x: str) -> str | None:
    forms = ("{0}.sum(-1)", "{0}.sum(0)", "{0}.amax(-1, keepdim=True)", "{0}.mean(-1)")
    return _assign(d, d.rng.choice((*forms, "{0}.cumsum(0)")).format(x))


def joined(d: Any, x: str) -> str | None:
    y = d.like(x)
    forms = ("torch.cat([{0}, {1}], -1)", "torch.cat([{0}, {1}])", "torch.stack([{0}, {1}])")
    return _assign(d, d.rng.choice(forms).format(x, y))


def sum_and_norm(d: Any, x: str) -> str | None:
    """What a fusion pass puts together, the sum read by others or not."""
    y = d.like(x)
    if d.rng.random() < 0.4:
        return _assign(d, f"norm({x} + {y}, None, 0.25)")
    total = _assign(d, f"{x} + {y}")
    return f"{total}\n" + _assign(d, f"norm({total.split()[0]}, None, 0.25)")


def product(d: Any, x: str) -> str | None:
    t = d.value(x)
    y = d.pick(lambda o: o.dim() == 2 and o.dtype is t.dtype and o.shape[0] == t.shape[-1])
    return y and _assign(d, f"({x} @ {y}) * 0.125")


def cast(d: Any, x: str) -> str | None:
    forms = ("to(bf16)", "float()", "to(torch.float32)", "to(bf16).float()", "float().clone()")
    return _assign(d, f"{x}.{d.rng.choice(forms)}")


def made(d: Any, x: str) -> str | None:
    forms = ("torch.zeros_like({0})", "torch.full((6, 8), 2.0)", "torch.full_like({0}, 3.0)")
    return _assign(d, d.rng.choice((*forms, "torch.ones(8)", "{0}.new_zeros(6, 8)")).format(x))


def gathered(d: Any, x: str) -> str | None:
    forms = ("{0}[[0, 1]]", "{0}.index_select(0, torch.tensor([1, 0]))")
    return _assign(d, d.rng.choice(forms).format(x))


VALUES: list[Statement] = [arithmetic, arithmetic, scaled, scaled, reduced, joined, product, cast]
VALUES += [made, gathered, sum_and_norm, sum_and_norm]


# ---- what only Dynamo can take -------------------------------------------------------------------


def branch(d: Any, x: str) -> str | None:
    y = d.like(x)
    number = d.count
    kind = d.rng.choice(("butterfly", "crossed"))
    donated = d.rng.random() < 0.4
    inner = f"{kind}.maybe_inplace(s, t, 0.5)" if donated else f"{kind}(s, t, 0.5)"
    if d.rng.random() < 0.5:  # on values of the branch's own
        inner = f"{kind}.maybe_inplace(s * 2.0, t + 1.0, 0.5)"
    more = "p + t, q" if "(s, t" not in inner or not donated else "p + 1.0, q * 1.0"
    return "\n".join(
        [
            f"def true_{number}(s, t):",
            f"    p, q = {inner}",
            f"    return {more}",
            f"def false_{number}(s, t):",
            "    return s + 2.0, t * 0.5",
            _assign(d, f"cond({x}.sum() > 0, true_{number}, false_{number}, ({x}, {y}))", 2),
        ]
    )


def checkpointed(d: Any, x: str) -> str | None:
    y = d.like(x)
    number = d.count
    call = d.rng.choice(("", ".maybe_inplace"))
    return "\n".join(
        [
            f"def piece_{number}(s, t):",
            f"    p, q = butterfly{call}(s * 1.0, t + 1.0, 0.5)",
            "    return p * t, q + s",
            _assign(d, f"checkpoint(piece_{number}, {x}, {y}, use_reentrant=False)", 2),
        ]
    )


def broken(d: Any, x: str) -> str | None:
    return "graph_break()"


SPECIALS: list[Statement] = [branch, branch, checkpointed, checkpointed, broken]
