# SPDX-License-Identifier: Apache-2.0
"""What a user of the compiler may choose."""

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from vllm_ir.errors import IrTypeError, UnknownNameError, nearest, unknown_name

PREFIX = "vllm_ir."


@dataclass(frozen=True)
class CompileConfig:
    """Choices of one compilation. Plain data: it hashes, compares and pickles.

    Attributes:
        strict_numerics: Round wherever eager rounds. Inductor otherwise keeps float32 between the
            operators that it fuses, which is more exact than eager and not equal to it; fusions
            that leave out a rounding are left out too.
        donate_graph_inputs: Let `maybe_inplace` overwrite inputs of the graph itself, as an eager
            call does. False copies them; CUDA graphs want that.
        fusions: Names of the fusion and transformation passes to run; they run in the registry's
            order. None: those that are on by default.

    Raises:
        IrTypeError: A choice of the wrong type.
        UnknownNameError: A fusion pass that isn't registered; its module must be imported before.
    """

    strict_numerics: bool = False
    donate_graph_inputs: bool = True
    fusions: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("strict_numerics", "donate_graph_inputs"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise IrTypeError(
                    f"vllm_ir.compile: {name} must be a bool, got {type(value).__name__}."
                )
        fusions = self.fusions
        if isinstance(fusions, str) or not isinstance(fusions, (Iterable, type(None))):
            raise IrTypeError(
                f"vllm_ir.compile: fusions must be a list of names, got {type(fusions).__name__}."
            )
        if fusions is not None:
            object.__setattr__(self, "fusions", tuple(fusions))
            from vllm_ir.compile.fusion import registry  # which reads configurations

            registry.chosen(self.fusions)

    def inductor_options(self) -> dict[str, Any]:
        """Return the Inductor options that these choices need."""
        return {"emulate_precision_casts": True} if self.strict_numerics else {}


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split `torch.compile(options=...)` into our choices, without their prefix, and Inductor's.

    Raises:
        UnknownNameError: An option that starts with "vllm_ir." and isn't one, one of ours without
            that prefix, or one that Inductor doesn't know.
    """
    known = [f.name for f in fields(CompileConfig)]
    ours: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    for name, value in options.items():
        if name in known:
            raise UnknownNameError(
                f"vllm_ir.compile: an option of vllm_ir's must have its prefix, got {name!r}. "
                f"Write '{PREFIX}{name}'."
            )
        if not name.startswith(PREFIX):
            theirs[name] = value
            continue
        short = name.removeprefix(PREFIX)
        if short not in known:
            raise UnknownNameError(unknown_name("vllm_ir.compile", "option", short, known))
        ours[short] = value
    if theirs:
        _check_inductor_options(theirs)
    return ours, theirs


def mode_options(mode: str | None) -> dict[str, Any]:
    """Return the Inductor options that `torch.compile(mode=...)` stands for.

    Raises:
        UnknownNameError: No such mode.
    """
    if mode is None or mode == "default":
        return {}
    from torch._inductor import list_mode_options  # slow to import

    known: dict[str, dict[str, Any]] = list_mode_options()
    if mode not in known:
        raise UnknownNameError(unknown_name("vllm_ir.compile", "mode", mode, known))
    return known[mode]


def _check_inductor_options(options: Mapping[str, Any]) -> None:
    from torch._inductor import config  # slow to import

    for name in options:
        try:
            operator.attrgetter(name)(config)  # "triton.cudagraphs" is one of a section
        except AttributeError:
            known = config.get_config_copy()
            raise UnknownNameError(
                f"vllm_ir.compile: unknown option {name!r}: neither Inductor nor vllm_ir has it."
                f"{nearest(name, known)}"
            ) from None
