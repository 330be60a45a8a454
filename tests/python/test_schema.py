# SPDX-License-Identifier: Apache-2.0
"""From annotations to a schema, in all the ways that modules write them (case D28)."""

import sys
import textwrap

import pytest
import torch
from torch import Tensor
from toys import new_name, raises_exactly, runs

import vllm_ir as ir
from vllm_ir.errors import IrValueError
from vllm_ir.schema import schema_of


def module_of(tmp_path, monkeypatch, text):
    """Import a module with this text."""
    name = new_name("schema_module")
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return __import__(name)


EVERY_KIND = (
    "(Tensor x, Tensor? w, float e, SymInt[] sizes, SymInt? v=None, bool b=True, "
    'str s="a") -> (Tensor, Tensor)'
)

D28_MODULES = {
    "postponed, PEP 604": """
        from __future__ import annotations
        from torch import Tensor
        from typing import List
        def native(x: Tensor, w: Tensor | None, e: float, sizes: List[int], v: int | None = None,
                   b: bool = True, s: str = "a") -> tuple[Tensor, Tensor]:
            return x * e, x + 1
    """,
    "postponed, nothing imported": """
        from __future__ import annotations
        def native(x: torch.Tensor, w: Optional[Tensor], e: float, sizes: List[int],
                   v: Optional[int] = None, b: bool = True, s: str = "a") -> Tuple[Tensor, Tensor]:
            return x * e, x + 1
    """,
    "strings, torch imported locally": """
        def make():
            import torch
            from typing import Optional as Opt
            def native(x: "torch.Tensor", w: "Opt[torch.Tensor]", e: "float", sizes: "list[int]",
                       v: "Opt[int]" = None, b: "bool" = True,
                       s: "str" = "a") -> "tuple[torch.Tensor, torch.Tensor]":
                Opt  # captured, so that the annotation can be read
                return x * e, torch.add(x, 1)
            return native
        native = make()
    """,
    "typing": """
        import typing as t
        import torch
        def native(x: torch.Tensor, w: t.Optional[torch.Tensor], e: float, sizes: t.List[int],
                   v: t.Optional[int] = None, b: bool = True,
                   s: str = "a") -> t.Tuple[torch.Tensor, torch.Tensor]:
            return x * e, x + 1
    """,
    "unions the other way round": """
        from torch import Tensor
        from typing import Union, Sequence
        def native(x: Tensor, w: None | Tensor, e: float, sizes: Sequence[int],
                   v: Union[None, int] = None, b: bool = True, s: str = "a"
                   ) -> tuple[Tensor, Tensor]:
            return x * e, x + 1
    """,
}


@pytest.mark.parametrize("case", D28_MODULES)
def test_d28_annotations_of_every_spelling_give_one_schema(tmp_path, monkeypatch, case):
    native = module_of(tmp_path, monkeypatch, D28_MODULES[case]).native
    schema = schema_of(native, "vllm_ir.case")
    assert schema.text == EVERY_KIND
    assert schema.tensor_outputs == 2
    kinds = [(p.name, p.kind, p.optional, p.has_default) for p in schema.params]
    assert kinds == [
        ("x", "Tensor", False, False),
        ("w", "Tensor", True, False),
        ("e", "float", False, False),
        ("sizes", "other", False, False),
        ("v", "int", True, True),
        ("b", "bool", False, True),
        ("s", "str", False, True),
    ]


@pytest.mark.parametrize("case", D28_MODULES)
def test_d28_such_an_op_and_impl_run_and_compile(tmp_path, monkeypatch, case):
    native = module_of(tmp_path, monkeypatch, D28_MODULES[case]).native
    op = ir.register_op(native, name=new_name())
    op.register_impl("other")(module_of(tmp_path, monkeypatch, D28_MODULES[case]).native)
    op.set_default(["other", "native"])
    x = torch.ones(2)
    with runs(op, other=2):
        for y, z in (op(x, None, 3.0, [1]), op(x, w=x, e=3.0, sizes=[4], s="b", b=False)):
            assert torch.equal(y, x * 3)
            assert torch.equal(z, x + 1)

    def f(x):
        return op(x, None, 3.0, [1])[0]

    assert torch.equal(torch.compile(f, backend="eager", fullgraph=True)(x), x * 3)


def test_d28_a_name_that_can_t_be_found_names_the_parameter_and_the_cure(tmp_path, monkeypatch):
    native = module_of(
        tmp_path,
        monkeypatch,
        """
        from __future__ import annotations
        def native(x: Tensor, w: np.ndarray) -> Tensor:
            return x
        """,
    ).native
    name = new_name()
    with raises_exactly(
        IrValueError,
        f"vllm_ir.{name}: the annotation 'np.ndarray' of 'w' can't be read (NameError: name 'np' "
        "is not defined). Import its names at module level, or use torch's and typing's own.",
    ):
        ir.register_op(native, name=name)
    assert name not in ir.IrOp.registry


def test_an_alias_of_the_module_goes_before_the_known_names():
    scope = {"Tensor": Tensor}
    exec("List = list\ndef native(x: 'Tensor', n: 'List[float]') -> 'Tensor':\n  return x", scope)
    assert schema_of(scope["native"], "vllm_ir.a").text == "(Tensor x, float[] n) -> Tensor"


def test_a_dtype_is_a_kind_of_its_own():
    def native(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return x.to(dtype)

    schema = schema_of(native, "vllm_ir.a")
    assert schema.text == "(Tensor x, ScalarType? dtype=None) -> Tensor"
    assert (schema.params[1].kind, schema.params[1].optional) == ("dtype", True)


def test_a_list_of_tensors():
    def native(xs: list[Tensor], n: int) -> Tensor:
        return torch.stack(xs)

    schema = schema_of(native, "vllm_ir.a")
    assert [p.kind for p in schema.params] == ["other", "int"]
    op = ir.register_op(native, name=new_name(), activations=[])
    op.set_default(["native"])
    with runs(op, native=1):
        assert op([torch.ones(1), torch.zeros(1)], 1).tolist() == [[1.0], [0.0]]


def test_int_is_symbolic_in_torch_s_schema():
    def native(x: Tensor, n: int) -> Tensor:
        return x

    assert schema_of(native, "vllm_ir.a").text == "(Tensor x, SymInt n) -> Tensor"


def test_a_union_of_two_types_is_refused_by_name():
    def native(x: Tensor, n: Tensor | str) -> Tensor:
        return x

    with pytest.raises(IrValueError) as error:
        schema_of(native, "vllm_ir.a")
    text = str(error.value)
    assert text.startswith("vllm_ir.a: torch can't make a schema of the signature. ")
    assert "n" in text


def test_donating_text_marks_the_activations_only():
    def native(x: Tensor, xx: Tensor, w: Tensor | None) -> tuple[Tensor, Tensor]:
        return x, xx

    schema = schema_of(native, "vllm_ir.a")
    assert schema.donating_text(("x", "w")) == (
        "(Tensor(a0!) x, Tensor xx, Tensor(a1!)? w) -> (Tensor, Tensor)"
    )


def test_a_single_tensor_in_a_tuple_is_one_output():
    def native(x: Tensor) -> tuple[Tensor]:
        return (x + 1,)

    assert schema_of(native, "vllm_ir.a").tensor_outputs == 1
