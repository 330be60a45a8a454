// SPDX-License-Identifier: Apache-2.0
// Is a plain eager call all that is going on in this thread? The tests are the dispatcher's own
// words and cost 17 ns together. Any doubt answers no, and torch's operator takes the call.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/record_function.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/python_variable.h>

#include "cpp/torch/run.h"

namespace vllm_ir {

enum class Eager : uint8_t { kNo, kGradMode, kNoGrad, kInference };

// Read once, when the module is loaded, from torch itself.
struct TorchFacts {
  uint64_t plain_keys = 0;  // key-set bits of a dense tensor that nothing wraps
  uint64_t inference_included = 0, inference_excluded = 0;  // thread words in inference mode
  PyTypeObject* device_context = nullptr;                   // torch.utils._device.DeviceContext
  PyObject* no_torch_function = nullptr;
  PyObject* no_torch_dispatch = nullptr;
};
void read_torch_facts();

// The stack of function modes holds default devices only. An op takes its device from its inputs,
// so those change nothing.
bool only_device_contexts();
// A Tensor subclass with both __torch_function__ and __torch_dispatch__ disabled, as weight classes
// have: nothing of it can see the call.
bool is_plain_subclass(PyTypeObject* type);

extern TorchFacts g_torch_facts;

inline Eager plain_eager() {
  const auto& local = c10::impl::raw_local_dispatch_key_set;
  const uint64_t included = local.included_, excluded = local.excluded_;
  bool inference = false;
  if ((included | excluded) != 0) {
    // One word each covers dispatch modes, fake tensors, functionalisation, functorch, jit
    // tracing, pre-dispatch and autocast.
    inference = included == g_torch_facts.inference_included &&
                excluded == g_torch_facts.inference_excluded;
    if (!inference) return Eager::kNo;
  }
  if (at::impl::torch_function_mode_enabled() && !only_device_contexts()) [[unlikely]] {
    return Eager::kNo;
  }
  // The dispatcher's own test for profilers and observers.
  if (at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value()) [[unlikely]] {
    return Eager::kNo;
  }
  if (inference) return Eager::kInference;
  return c10::AutogradState::get_tls_state().get_grad_mode() ? Eager::kGradMode : Eager::kNoGrad;
}

inline bool is_plain_tensor(PyObject* object) {
  return THPVariable_CheckTypeExact(Py_TYPE(object)) || is_plain_subclass(Py_TYPE(object));
}

inline bool needs_autograd(const at::Tensor& t, Eager mode) {
  return mode != Eager::kInference && needs_gradient(t, mode == Eager::kGradMode);
}

inline bool has_plain_keys(uint64_t keys) { return (keys & ~g_torch_facts.plain_keys) == 0; }

}  // namespace vllm_ir
