// SPDX-License-Identifier: Apache-2.0
// Registers this project's own kernels: the vllm_ir_C operators and their entries for eager calls.
#include "cpp/python/kernels.h"

#include "cpp/kernels/cpu_level.h"
#include "cpp/torch/activation_ops.h"
#include "cpp/torch/entries.h"
#include "cpp/torch/kernel_ops.h"

namespace vllm_ir {

void init_kernels(py::module_& m) {
  kernel_ops::register_kernel_ops();
  constexpr auto kGil = Gil::kReleaseWhenLarge;
  namespace ops = kernel_ops;
  static constexpr Entry entries[] = {
      entry<&ops::rms_norm>("vllm_ir_C::rms_norm", kGil),
      entry<&ops::unchecked::rms_norm>("vllm_ir_C::rms_norm_unchecked", kGil, Checks::kInRule),
      entry<&ops::silu_and_mul>("vllm_ir_C::silu_and_mul", kGil),
      entry<&ops::unchecked::silu_and_mul>("vllm_ir_C::silu_and_mul_unchecked", kGil,
                                           Checks::kInRule),
      entry<&ops::gelu_and_mul>("vllm_ir_C::gelu_and_mul", kGil),
      entry<&ops::unchecked::gelu_and_mul>("vllm_ir_C::gelu_and_mul_unchecked", kGil,
                                           Checks::kInRule),
      entry<&ops::fused_add_rms_norm_>("vllm_ir_C::fused_add_rms_norm_", kGil),
      entry<&ops::unchecked::fused_add_rms_norm_>("vllm_ir_C::fused_add_rms_norm_unchecked_", kGil,
                                                  Checks::kInRule)};
  EntryTable table;
  table.count = std::size(entries);
  table.entries = entries;
  add_entries(table, "vllm_ir");

  m.def("cpu_level", [] { return std::string(kernels::cpu_level_name(kernels::cpu_level())); });
}

}  // namespace vllm_ir
