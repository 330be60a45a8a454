# SPDX-License-Identifier: Apache-2.0
"""Two ranks that run a small tensor-parallel model as it is and under `sequence_parallelism`.

`python sequence_parallel_ranks.py FOLDER` starts both and leaves FOLDER/0.json and FOLDER/1.json:
what each rank saw. The tests judge.
"""

import functools
import json
import os
import random
import sys
import warnings
from pathlib import Path

import torch
from fusion_graphs import Fused
from torch import Tensor, distributed, multiprocessing
from torch.profiler import ProfilerActivity, profile

import vllm_ir as ir
from vllm_ir.compile import Backend, CompileConfig

C10D = torch.ops._c10d_functional
COLLECTIVES = ("all_reduce", "reduce_scatter_tensor", "all_gather_into_tensor")
RANKS, HIDDEN, LAYERS = 2, 16, 3
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# What is left of a layer's `r = r + p; y = norm(r)` when sequence parallelism comes.
FORMS = {
    "fused op": CompileConfig(fusions=("sequence_parallelism",)),
    "fused by a pass": CompileConfig(fusions=("add_rms_norm", "sequence_parallelism")),
    "apart": CompileConfig(fusions=("sequence_parallelism",), strict_numerics=True),
}


def model_of(form: str, residual: bool):
    """Return layers whose matrices are divided among the ranks; norms and residual are whole."""
    name = distributed.group.WORLD.group_name

    def model(x, norm, *matrices):
        y, r = ir.ops.rms_norm(x, norm, 1e-6), x
        for matrix in matrices:
            p = C10D.wait_tensor(C10D.all_reduce(torch.relu(y @ matrix), "sum", name))
            if form == "fused op":
                y, r = ir.ops.fused_add_rms_norm(p, r, norm, 1e-6)
            else:
                r = p + r
                y = ir.ops.rms_norm(r, norm, 1e-6)
        return (y, r) if residual else y

    return model


def parts(dtype: torch.dtype) -> list[Tensor]:
    """Return this rank's part of each layer's matrix."""
    torch.manual_seed(distributed.get_rank())
    return list((torch.randn(LAYERS, HIDDEN, HIDDEN, dtype=torch.float32) * 0.3).to(dtype))


def batch(rows: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the same batch on both ranks."""
    torch.manual_seed(rows)
    return torch.randn(rows, HIDDEN, dtype=torch.float32).to(dtype)


def weight_of(kind: str, dtype: torch.dtype) -> Tensor | None:
    torch.manual_seed(99)
    values = torch.randn(HIDDEN, dtype=torch.float32)
    return None if kind == "none" else values.to(torch.float32 if kind == "float32" else dtype)


def difference(got, want) -> float:
    """Return the largest difference, relative where values are large."""
    pairs = zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]
    found = [((a.double() - b.double()).abs() / (1 + b.double().abs())).max() for a, b in pairs]
    return max(float(d) for d in found)


def graphs() -> list[dict]:
    """Run the pass on every form and dtype, and its graph without Inductor."""
    found = []
    for dtype in DTYPES:
        for weight in ("same", "float32", "none"):
            for form, config in FORMS.items():
                for residual in (False, True):
                    model = model_of(form, residual)
                    norm = weight_of(weight, DTYPES[dtype])
                    args = (batch(6, DTYPES[dtype]), norm, *parts(DTYPES[dtype]))
                    fused = Fused(model, *args, config=config)
                    calls = {n: len(fused.calls(getattr(C10D, n).default)) for n in COLLECTIVES}
                    found.append(
                        {
                            **{"dtype": dtype, "weight": weight, "form": form, "ops": fused.ops},
                            **{"residual": residual, "calls": calls},
                            "difference": difference(fused(*args), model(*args)),
                        }
                    )
    return found


def draw(seed: int) -> tuple[list[tuple[str, int, int]], list[int]]:
    """Return a random program: what each statement does and to which values; what is returned.

    "reduce" multiplies by this rank's matrix first; everything else is the same on both ranks.
    """
    rng = random.Random(seed)
    kinds = ["layer"] * 6 + ["reduce"] * 2 + ["fused"] * 2 + ["norm"] * 2 + ["add"] * 2 + ["relu"]
    statements = [(rng.choice(kinds), rng.randrange(9), rng.randrange(9)) for _ in range(10)]
    return statements, rng.sample(range(1, 10), 3)


def run_program(program, x, norm, matrix):
    """Run a random program; values are counted from the last one."""
    name = distributed.group.WORLD.group_name
    statements, returned = program
    values = [x * 1]
    for kind, a, b in statements:
        one, other = values[-1 - a % len(values)], values[-1 - b % len(values)]
        if kind in ("reduce", "layer"):
            p = C10D.wait_tensor(C10D.all_reduce(one @ matrix, "sum", name))
            values += ir.ops.fused_add_rms_norm(p, other, norm, 1e-6) if kind == "layer" else (p,)
        elif kind == "fused":
            values += ir.ops.fused_add_rms_norm(one, other, norm, 1e-6)
        elif kind == "norm":
            values.append(ir.ops.rms_norm(one, norm, 1e-5))
        else:
            values.append(one + other if kind == "add" else torch.relu(one))
    return tuple(values[-i % len(values)] for i in returned)


def random_programs(count: int) -> list[dict]:
    """Compare random programs with themselves under both passes."""
    found = []
    args = (batch(4), weight_of("same", torch.float32), parts(torch.float32)[0])
    for seed in range(count):
        model = functools.partial(run_program, draw(seed))
        fused = Fused(model, *args, config=FORMS["fused by a pass"])
        scattered = len(fused.calls(C10D.reduce_scatter_tensor.default))
        apart = difference(fused(*args), model(*args))
        found.append({"seed": seed, "scattered": scattered, "difference": apart})
    return found


def compiled(rows: tuple[int, ...]) -> dict:
    """Compile a model with Inductor and call it with batches, in this order."""
    torch._dynamo.reset()
    model = model_of("fused op", True)
    norm = weight_of("same", torch.float32)
    matrices = parts(torch.float32)
    program = torch.compile(model, backend=Backend(FORMS["fused op"]), fullgraph=True)
    differences, ran = {}, {}
    for n in rows:
        x = batch(n)
        torch._dynamo.mark_dynamic(x, 0)
        kept = x.clone()
        got = program(x, norm, *matrices)
        differences[n] = difference(got, model(x, norm, *matrices))
        assert torch.equal(x, kept)
        ran[n] = collectives(program, x, norm, *matrices)
    report = ir.compile.explain(program).to_dict()
    return {"differences": differences, "ran": ran, "report": report}


def collectives(program, *args) -> dict[str, int]:
    """Return what a call sends, by the profiler."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        program(*args)
    names = [e.name for e in seen.events()]
    # Inductor may let a collective write into memory that it has.
    forms = {n: (n, f"{n}_", f"{n}_out") for n in COLLECTIVES}
    return {n: sum(names.count(f"_c10d_functional::{f}") for f in of) for n, of in forms.items()}


def run_rank(rank: int, folder: str) -> None:
    warnings.simplefilter("ignore")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/cache"  # one for both: artifacts must differ
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    ir.ops.fused_add_rms_norm.set_default(["vllm_c", "native"])
    with torch.no_grad():
        seen = {"graphs": graphs(), "random": random_programs(60)}
        seen |= {"first": compiled((8, 7, 6, 4, 9)), "again": compiled((9, 8))}
    Path(folder, f"{rank}.json").write_text(json.dumps(seen))
    distributed.destroy_process_group()


if __name__ == "__main__":
    multiprocessing.spawn(run_rank, args=(sys.argv[1],), nprocs=RANKS)
