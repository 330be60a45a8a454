# SPDX-License-Identifier: Apache-2.0
from vllm_ir.text_table import render


def test_columns_line_up_and_lines_end_without_spaces():
    assert render(("a", "bb"), [("ccc", "d"), ("e", "")]) == ["a    bb", "ccc  d", "e"]


def test_a_table_without_rows_is_its_header():
    assert render(("a", "b"), []) == ["a  b"]
