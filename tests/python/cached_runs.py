# SPDX-License-Identifier: Apache-2.0
"""Compilations in processes of their own that share a cache folder, and what the caches did.

As a script it has torch loaded once and forks for each run, which costs a hundredth of a fresh
interpreter; what a run imports and registers is its own.
"""

import json
import os
import sys
import textwrap
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from processes import run_python

# A user's package: an op, providers, and what those are made of, each in a file of its own.
PACKAGE = {
    "__init__.py": "",
    "ops.py": """
        import torch
        from torch import Tensor

        import vllm_ir as ir
        from . import kernels, opaque, predicates, ruled

        @ir.register_op(name="user_scaled", allow_inplace=True)
        def scaled(x: Tensor, factor: float) -> Tensor:
            return kernels.by_torch(x, factor)

        @scaled.register_impl("mine", supports_args=predicates.accepts, batch_invariant=True)
        def mine(x: Tensor, factor: float) -> Tensor:
            return kernels.multiply(x, factor)

        @scaled.register_impl("ruled", supports_args=ruled.RULE)
        def by_rule(x: Tensor, factor: float) -> Tensor:
            return x * factor

        @scaled.register_impl("writes", inplace=True)
        def writes(x: Tensor, factor: float) -> Tensor:
            torch.ops.user_ops.scale_(x, factor)
            return x

        scaled.set_default(["mine", "native"])

        def functional(x):
            return scaled(x, 2.0) + 1

        def donating(x):
            return scaled.maybe_inplace(x, 2.0) + 1
        """,
    # An operator of one's own: torch's in-place operators would become new values in a graph.
    "opaque.py": """
        import torch
        from torch import Tensor

        @torch.library.custom_op("user_ops::scale_", mutates_args=("x",))
        def scale_(x: Tensor, factor: float) -> None:
            x.mul_(factor)
        """,
    "kernels.py": """
        import torch

        def by_torch(x, factor):
            return x * factor

        def shapes(x, factor):
            return torch.empty_like(x)

        def multiply(x, factor):
            return factor * x
        """,
    "predicates.py": """
        import os
        from . import limits

        def accepts(x, factor):
            if os.environ.get("USER_SWITCH") == "off":
                return False
            return limits.is_small(x)
        """,
    "limits.py": """
        from .numbers import MOST

        def is_small(x):
            return x.dim() <= MOST
        """,
    "numbers.py": "MOST = 4\n",
    "ruled.py": """
        from vllm_ir import rules

        RULE = rules.last_dim_multiple_of("x", 2)
        """,
}


@dataclass
class Run:
    """One compilation in a process of its own.

    Attributes:
        folder: Holds the package `user`.
        setup: Statements to run behind its import; `ir`, `ops` and `op` are there.
        function: Which function of `user.ops`.
        config: Arguments of `CompileConfig`.
        env: Environment variables to set.
    """

    folder: str
    setup: str = ""
    function: str = "functional"
    config: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


@dataclass
class Outcome:
    """What a run did.

    Attributes:
        caches: "hit", "miss" or "bypass", of AOTAutograd's cache and of Inductor's, as far as they
            were asked.
        right: The result is what eager gives without our ops.
        untouched: The argument is as it was.
        selected: Who ran, by the report; None without one.
        cached: The report says that the code came from a cache.
        messages: What `vllm_ir` logged.
    """

    caches: tuple[str, str]
    right: bool
    untouched: bool
    selected: list[str] | None
    cached: list[bool]
    messages: list[str]


HIT, MISS, BYPASS = ("hit", "hit"), ("miss", "miss"), ("bypass", "bypass")


def write_package(folder: Path, salt: str = "", append: str = "", **edits: tuple[str, str]) -> str:
    """Write the package into a folder, with some files edited, and return the folder.

    Args:
        folder: Made when need be.
        salt: Makes the package another one for caches.
        append: Text to put behind `ops.py`.
        **edits: File name without ".py" → old and new text.
    """
    package = folder / "user"
    package.mkdir(parents=True)
    for name, text in PACKAGE.items():
        old, new = edits.pop(name.removesuffix(".py"), ("", ""))
        assert old in text
        text = textwrap.dedent(text.replace(old, new) if old else text)
        more = {"kernels.py": f"\n# {salt}\n", "ops.py": textwrap.dedent(append)}
        (package / name).write_text(text + more.get(name, ""))
    assert not edits
    return str(folder)


def outcomes_of(runs: list[Run], cache: Path, env: dict[str, str] | None = None) -> list[Outcome]:
    """Do the runs one after another in a fresh interpreter.

    Args:
        runs: What to run.
        cache: The cache folder that they share.
        env: For the interpreter, beside each run's own.
    """
    done = run_python(
        __file__,
        json.dumps([asdict(run) for run in runs]),
        env={
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            **(env or {}),
        },
    )
    assert done.returncode == 0, done.stderr
    return [_outcome(line) for line in done.stdout.splitlines()]


def _outcome(line: str) -> Outcome:
    data = json.loads(line)
    return Outcome(**{**data, "caches": tuple(data["caches"])})


# ---- in the interpreter of the runs --------------------------------------------------------------


def main() -> None:

    import vllm_ir.compile  # noqa: F401

    for spec in json.loads(sys.argv[1]):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                print(json.dumps(asdict(_run(Run(**spec)))), flush=True)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        if os.waitpid(child, 0)[1] != 0:
            sys.exit(f"a run failed: {spec}")


def _run(run: Run) -> Outcome:
    import torch
    from torch._dynamo.utils import counters

    import vllm_ir as ir

    os.environ.update(run.env)
    messages = _messages()
    sys.path.insert(0, run.folder)
    from user import ops  # type: ignore[import-not-found]

    exec(run.setup, {"ir": ir, "ops": ops, "op": ops.scaled})
    backend = ir.compile.Backend(ir.compile.CompileConfig(**run.config))
    compiled = torch.compile(getattr(ops, run.function), backend=backend, fullgraph=True)
    before = torch.arange(12.0).reshape(3, 4)
    x = before.clone()
    with torch.no_grad():
        result = compiled(x)
    report = ir.explain(compiled)
    return Outcome(
        caches=(
            _state(counters["aot_autograd"], "autograd_cache"),
            _state(counters["inductor"], "fxgraph_cache"),
        ),
        right=torch.equal(result, before * 2 + 1),
        untouched=torch.equal(x, before),
        selected=[n.selected for n in report.nodes] if report.graphs else None,
        cached=[g.cached for g in report.graphs],
        messages=messages,
    )


def _state(counts: Any, name: str) -> str:
    found = [s for s in ("hit", "miss", "bypass") if counts[f"{name}_{s}"]]
    return "+".join(found)


def _messages() -> list[str]:
    import logging

    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logging.getLogger("vllm_ir").addHandler(Keep())
    return messages


if __name__ == "__main__":
    main()
