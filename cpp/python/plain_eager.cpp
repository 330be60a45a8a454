// SPDX-License-Identifier: Apache-2.0
#include "cpp/python/plain_eager.h"

#include <c10/core/InferenceMode.h>
#include <torch/csrc/PyInterpreter.h>

namespace vllm_ir {

TorchFacts g_torch_facts;

void read_torch_facts() {
  c10::DispatchKeySet plain(c10::DispatchKey::ADInplaceOrView);
  for (const auto key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA, c10::DispatchKey::HIP,
                         c10::DispatchKey::XPU, c10::DispatchKey::PrivateUse1}) {
    const auto backend = c10::toBackendComponent(key);
    plain = plain | c10::DispatchKeySet(key) | c10::getAutogradRelatedKeySetFromBackend(backend) |
            c10::getAutocastRelatedKeySetFromBackend(backend);
  }
  g_torch_facts.plain_keys = plain.raw_repr();
  {
    const c10::InferenceMode guard(true);
    const auto& local = c10::impl::raw_local_dispatch_key_set;
    g_torch_facts.inference_included = local.included_;
    g_torch_facts.inference_excluded = local.excluded_;
  }
  // References that are never given back: the facts live as long as the process.
  const auto core = py::module_::import("torch._C");
  g_torch_facts.no_torch_function =
      py::object(core.attr("_disabled_torch_function_impl")).release().ptr();
  g_torch_facts.no_torch_dispatch =
      py::object(core.attr("_disabled_torch_dispatch_impl")).release().ptr();
  g_torch_facts.device_context = reinterpret_cast<PyTypeObject*>(
      py::object(py::module_::import("torch.utils._device").attr("DeviceContext")).release().ptr());
}

bool only_device_contexts() {
  using Modes = at::impl::PythonTorchFunctionTLS;
  for (int64_t i = 0, n = Modes::stack_len(); i < n; ++i) {
    const PyObject* const mode = Modes::get_stack_at(i)->ptr(getPyInterpreter());
    if (Py_TYPE(mode) != g_torch_facts.device_context) return false;
  }
  return true;
}

bool is_plain_subclass(PyTypeObject* type) {
  // Cached by type and version tag, so that a changed class is asked again. Under Python's lock.
  struct Known {
    PyTypeObject* type = nullptr;
    unsigned int version = 0;
    bool plain = false;
  };
  static Known cache[8];
  Known& known = cache[(reinterpret_cast<uintptr_t>(type) >> 6) % 8];
  if (known.type == type && known.version == type->tp_version_tag && known.version != 0) {
    return known.plain;
  }
  if (!PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(THPVariableClass))) return false;
  const py::handle handle(reinterpret_cast<PyObject*>(type));
  const auto is = [&](const char* name, const PyObject* expected) {
    return py::getattr(handle, name, py::none()).ptr() == expected;
  };
  const bool plain = is("__torch_function__", g_torch_facts.no_torch_function) &&
                     is("__torch_dispatch__", g_torch_facts.no_torch_dispatch);
  known = {type, type->tp_version_tag, plain};
  return plain;
}

}  // namespace vllm_ir
