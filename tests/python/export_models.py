# SPDX-License-Identifier: Apache-2.0
"""Models for export, importable in fresh processes too."""

import torch
from torch import Tensor, nn

import vllm_ir as ir

BATCHES = [0, 1, 2, 3, 7]
HIDDEN = 8


class Norm(nn.Module):
    """A norm with a weight or without."""

    def __init__(self, weighted: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(1, 2, HIDDEN)) if weighted else None

    def forward(self, x: Tensor) -> Tensor:
        return ir.ops.rms_norm(x, self.weight, 1e-6)


class AddNorm(nn.Module):
    """A residual addition and a norm, which donates what it is given."""

    def __init__(self, weighted: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(1, 2, HIDDEN)) if weighted else None

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        return ir.ops.fused_add_rms_norm.maybe_inplace(x, residual, self.weight, 1e-6)


class Model(nn.Module):
    """Parameters, a buffer, donation of inputs and of values in between, a write, no weight.

    The graph inputs `x` and `residual` go into a donating call, so a lowering that took them for
    its own would overwrite them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = AddNorm()
        self.linear = nn.Linear(HIDDEN, HIDDEN)
        self.second = AddNorm()
        self.last = Norm(weighted=False)
        self.register_buffer("scale", torch.linspace(0, 1, HIDDEN))

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        y, residual = self.first(x, residual)
        y, residual = self.second(self.linear(y) * self.scale, residual)
        y = self.last(y)
        y.mul_(2)
        return y, residual


class Mixed(Model):
    """The same, and norms of another dtype and another layout."""

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
        half = ir.ops.rms_norm(x.half(), None, 1e-6)
        turned = ir.ops.rms_norm(x.view(-1, 2, HIDDEN // 2).transpose(0, 1), None, 1e-6)
        return half, turned, *super().forward(x, residual)


class Raw(nn.Module):
    """Calls the operator that writes, on inputs of the graph."""

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        op = torch.ops.vllm_ir.fused_add_rms_norm.maybe_inplace
        y, total = op(x, residual, None, 1e-6)
        return y, total


class Keyworded(nn.Module):
    """Keywords, nested inputs and outputs, a buffer that is written, an input that is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm()
        self.register_buffer("state", torch.zeros(HIDDEN))

    def forward(self, x: Tensor, *, more: list[Tensor]) -> dict[str, Tensor]:
        y = self.norm(x)
        self.state.copy_(self.norm(self.state + y.sum(0)))
        return {"same": more[0], "norm": y, "sum": y + more[0]}


class Branches(nn.Module):
    """Ops inside the bodies of a higher-order operator, and in a region without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([AddNorm(), AddNorm()])
        self.norm = AddNorm()

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            x, residual = layer(x * 2, residual + 1)

        def yes(a: Tensor, b: Tensor) -> Tensor:
            return ir.ops.fused_add_rms_norm(a + 1, b, None, 1e-6)[0]

        def no(a: Tensor, b: Tensor) -> Tensor:
            return ir.ops.rms_norm(a - b, None, 1e-6)

        h = torch.cond(x.sum() > 0, yes, no, (x, residual))
        with torch.no_grad():
            return self.norm(h * 2, residual + 1)


def inputs(batch: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return an activation and a residual."""
    generator = torch.Generator().manual_seed(seed)
    x, residual = torch.randn(2, batch, HIDDEN, generator=generator)
    return x.clone(), residual.clone()


def by_batch() -> tuple[dict[int, object], dict[int, object]]:
    """Return the dynamic shapes of two inputs that share a batch dimension."""
    batch = torch.export.Dim("batch")
    return {0: batch}, {0: batch}


def seeded(kind: type[nn.Module]) -> nn.Module:
    """Return a model with the same weights in every process."""
    torch.manual_seed(0)
    return kind()
