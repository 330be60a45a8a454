// SPDX-License-Identifier: Apache-2.0
// The compiled module vllm_ir._C: a table of contents.
#include "cpp/python/bindings.h"
#include "cpp/python/donated_inputs.h"
#include "cpp/python/irop.h"
#include "cpp/python/kernels.h"
#include "cpp/python/plain_eager.h"
#include "cpp/python/scope_var.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "The compiled part of vllm_ir; use the vllm_ir package.";
  vllm_ir::read_torch_facts();
  vllm_ir::init_irop(m.ptr());
  vllm_ir::init_scope(m.ptr());
  vllm_ir::init_donated_inputs(m.ptr());
  vllm_ir::init_bindings(m);
  vllm_ir::init_kernels(m);
}
