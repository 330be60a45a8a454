# SPDX-License-Identifier: Apache-2.0
"""The examples of the docstrings run as they are written: each brings the imports that it needs."""

import json
from pathlib import Path

import pytest
from processes import output_of

import vllm_ir

PACKAGE = Path(vllm_ir.__file__).parent
WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if ">>> " in path.read_text()
)
# An example starts without the names of its module, and only knows what it imports itself.
SCRIPT = """
    import doctest, importlib, io, json

    outcomes = {}
    for name in json.loads(NAMES):
        said, tried = io.StringIO(), 0
        runner = doctest.DocTestRunner()
        module = importlib.import_module(name)
        for test in doctest.DocTestFinder(exclude_empty=True).find(module, globs={}):
            test.globs["__name__"] = "__main__"
            tried += runner.run(test, out=said.write).attempted
        outcomes[name] = {"tried": tried, "said": said.getvalue()}
    print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def outcomes():
    """Run all examples in one process, since an op can't be taken back."""
    said = output_of(SCRIPT.replace("NAMES", repr(json.dumps(WITH_EXAMPLES))))
    return json.loads(said)


def test_there_are_examples():
    assert {"vllm_ir", "vllm_ir.op", "vllm_ir.rules"} <= set(WITH_EXAMPLES)


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_the_examples_of_a_module(outcomes, module):
    assert outcomes[module]["said"] == ""
    assert outcomes[module]["tried"] > 0
