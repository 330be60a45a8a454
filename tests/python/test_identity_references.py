# SPDX-License-Identifier: Apache-2.0
"""What code refers to, read from bytecode that differs from Python to Python."""

import math
import os
import threading

from vllm_ir.identity.references import facts_of

NUMBER = 1


def made(cell, other):
    def everything(x, y=NUMBER):
        import a.b
        import c.d as e
        import helper

        from ..package.module import g as h
        from ..package.module import k
        from . import sibling

        def inner(z):
            global NUMBER
            return [cell.attribute.two(z) + helper.used_inside(q) + NUMBER for q in z]

        small = lambda t: h(t) + other  # noqa: E731
        z = 2
        w = z
        import u

        u.v.w(x)
        with os.path.join("A", {"B", "C"}) as file:
            file.read()
        try:
            sibling.first.second(x)
        except math.error as error:
            raise ValueError(error) from None

        class Local(cell.Base):
            member = other.constant

        return a.b.thing(x) + e.other(k) + x.shape[0] + len(x) + inner(z) + small(w) + Local

    return everything


def found(fn):
    return sorted(f"{r.kind}: {r}" for r in facts_of(fn.__code__).references)


def test_every_way_to_refer():
    assert found(made(1, 2)) == [
        "cell: cell.Base",
        "cell: cell.attribute.two",
        "cell: other",
        "cell: other.constant",
        "global: NUMBER",
        "global: ValueError",
        "global: __name__",
        "global: len",
        "global: math.error",
        "global: os.path.join",
        "import: ..package.module.g",
        "import: ..package.module.k",
        "import: .sibling.first.second",
        "import: a.b.thing",
        "import: c.d.other",
        "import: helper.used_inside",
        "import: u.v.w",
    ]


def test_a_local_variable_is_no_reference():
    def fn(x):
        y = x.shape
        return y, [z + 1 for z in y], (lambda q: q + y)(1)

    assert found(fn) == []


def test_a_name_that_is_imported_and_then_hidden():
    def fn(x):
        import helper

        def inner(helper):
            return helper.not_the_module

        return inner(x), helper.the_module

    assert found(fn) == ["import: helper.the_module"]


def arguments(fn):
    return [r.argument for r in facts_of(fn.__code__).references]


def test_the_text_beside_a_reference():
    assert arguments(lambda: os.environ["ITEM"]) == ["ITEM"]
    assert arguments(lambda: os.environ.get("GET", "DEFAULT")) == ["GET"]
    assert arguments(lambda: os.getenv("CALL")) == ["CALL"]
    assert arguments(lambda: "IN" in os.environ) == ["IN"]
    assert arguments(lambda: "NOT_IN" not in os.environ) == ["NOT_IN"]
    assert arguments(lambda name: os.environ.get(name, "DEFAULT")) == [""]
    assert arguments(lambda name: os.environ[name] == "DEFAULT") == [""]
    assert arguments(lambda name: name in os.environ) == [""]
    assert arguments(lambda name: ("DEFAULT", os.environ.get(name))) == [""]
    assert arguments(lambda: dict(os.environ)) == ["", ""]


def test_more_names_than_fit_into_one_byte():
    """EXTENDED_ARG stands between a name and its attribute."""
    many = "\n".join(f"    name_{i}.attribute_{i}" for i in range(300))
    scope = {}
    exec(f"def fn():\n{many}\n", scope)
    assert found(scope["fn"]) == sorted(f"global: name_{i}.attribute_{i}" for i in range(300))


def digest(source):
    scope = {}
    exec(source, scope)
    return facts_of(scope["fn"].__code__).digest


def test_the_digest_is_of_what_runs():
    base = digest("def fn(x):\n    return x + 1\n")
    assert digest("\n\ndef fn(x):\n    return x + 1  # comment\n") == base
    changed = [
        "def fn(x):\n    return x + 2\n",
        "def fn(x):\n    return x - 1\n",
        "def fn(x):\n    return x + 1.0\n",
        "def fn(x):\n    return x + True\n",
        "def fn(y):\n    return y + 1\n",
        "def fn(*x):\n    return x + 1\n",
        "def fn(x):\n    return (lambda: x + 1)()\n",
        "def fn(x):\n    return (lambda: x + 2)()\n",
        "def fn(x):\n    try:\n        return x + 1\n    except ValueError:\n        return 0\n",
        "def fn(x):\n    return x in {1, 2}\n",
        "def fn(x):\n    return x in {1, 3}\n",
    ]
    assert len({base, *map(digest, changed)}) == 1 + len(changed)


def test_threads_may_ask_at_once():
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(facts_of(made(1, 2).__code__)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(results)) == 1
