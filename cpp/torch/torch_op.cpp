// SPDX-License-Identifier: Apache-2.0
#include "cpp/torch/torch_op.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>
#include <torch/library.h>

#include <memory>
#include <utility>
#include <vector>

#include "cpp/dispatch/error.h"
#include "cpp/dispatch/scope.h"
#include "cpp/dispatch/select.h"
#include "cpp/torch/argument.h"
#include "cpp/torch/body.h"
#include "cpp/torch/careful.h"
#include "cpp/torch/run.h"

namespace vllm_ir {
namespace {

static_assert(kMaxResults == static_cast<int>(kMaxOutputs), "Outputs must hold every result");

CallHooks g_hooks;

using Stack = torch::jit::Stack;
using Values = c10::ArrayRef<c10::IValue>;

// The arguments of a boxed call, unpacked, with their tensors kept alive.
class Unpacked {
 public:
  Unpacked(const Op& op, Values values) {
    for (size_t i = 0; i < values.size(); ++i) {
      args_[i] = unpack(values[i], tensors_[i]);
      // What torch makes of None where a Tensor is needed.
      if (args_[i].tag == Tag::kTensor && !tensors_[i].defined()) {
        throw Error(ErrorKind::kType, op.qualified_name() + ": " + op.params()[i].name +
                                          " must be a Tensor, got None.");
      }
    }
  }
  Arg* data() noexcept { return args_.data(); }

 private:
  static Arg unpack(const c10::IValue& value, at::Tensor& held) {
    Arg arg;
    arg.integer = 0;
    if (value.isTensor()) {
      held = value.toTensor();
      arg.tag = Tag::kTensor;
      arg.tensor = &held;
    } else if (value.isDouble()) {
      arg.tag = Tag::kFloat;
      arg.real = value.toDouble();
    } else if (value.isBool()) {
      arg.tag = Tag::kBool;
      arg.flag = value.toBool();
    } else if (value.isInt()) {
      arg.tag = Tag::kInt;
      arg.integer = value.toInt();
    } else if (value.isString()) {
      const std::string& text = value.toStringRef();
      if (!arg.set_text(text.data(), text.size())) arg.tag = Tag::kObject;
    } else if (!value.isNone()) {
      arg.tag = Tag::kObject;
    }
    return arg;
  }

  std::array<Arg, kMaxParams> args_{};
  std::array<at::Tensor, kMaxParams> tensors_;
};

class BoxedArgs : public Unpacked, public TensorArgs {
 public:
  BoxedArgs(const Op& op, Values values)
      : Unpacked(op, values),
        TensorArgs(Unpacked::data(), static_cast<int>(values.size())),
        values_(values) {}

  bool ask(const Impl& impl) { return impl.body->ask(impl, values_, &why_); }
  const std::string& refusal(const Impl&) const { return why_; }

 private:
  Values values_;
  std::string why_;
};

std::vector<c10::IValue> pop_arguments(const Op& op, Stack* stack) {
  const auto n = static_cast<std::ptrdiff_t>(op.params().size());
  std::vector<c10::IValue> values(std::make_move_iterator(stack->end() - n),
                                  std::make_move_iterator(stack->end()));
  stack->erase(stack->end() - n, stack->end());
  return values;
}

void push_results(Outputs& out, Stack* stack) {
  for (size_t i = 0; i < out.size(); ++i) stack->emplace_back(std::move(out[i]));
}

void run_impl(const Op& op, const Impl& impl, std::vector<c10::IValue>& values, BoxedArgs& args,
              bool donating, Outputs& out) {
  const std::vector<Arg> callers(args.data(), args.data() + args.count());
  Held held;
  if (impl.inplace && !donating) {
    clone_activations(op, args.data(), held);
    for (size_t i = 0; i < values.size(); ++i) {
      if (held[i].defined()) values[i] = held[i];
    }
  }
  if (impl.body->entry) {
    impl.body->entry->call(args.data(), out);
  } else {
    impl.body->call(impl, values, out);
  }
  if (impl.inplace && donating) bump_versions(op, callers.data());
  check_results(op, impl, callers.data(), args.count(), out, donating);
}

thread_local bool t_eager_donation = false;

// The kernel of every backend: selects as an eager call does. maybe_inplace called from a graph is
// run out of place. Its schema can only say that the results are new tensors, and a compiler plans
// memory by that: a result that is the donated tensor would be overwritten.
class SelectingKernel final : public c10::OperatorKernel {
 public:
  SelectingKernel(const Op& op, bool donating) : op_(op), donating_(donating) {}

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
    try {
      select_and_run(stack);
    } catch (const Error& error) {
      if (g_hooks.raise) g_hooks.raise(error);
      throw;
    }
  }

 private:
  void select_and_run(Stack* stack) {
    const bool donating = std::exchange(t_eager_donation, false) && donating_;
    std::vector<c10::IValue> values = pop_arguments(op_, stack);
    BoxedArgs args(op_, values);
    const uint64_t switches = g_switches.load();
    const Table* const published = effective_table(op_, switches);
    if (!published) {
      throw Error(ErrorKind::kRuntime, op_.qualified_name() +
                                           ": internal error, please report: "
                                           "called before native was registered");
    }
    const Table& table = *published;
    if (needs_care(table, switches)) take_care(op_, table, switches, args);
    const Impl* const impl = select(table, args);
    Outputs out;
    run_impl(op_, *impl, values, args, donating, out);
    push_results(out, stack);
  }

  const Op& op_;
  const bool donating_;
};

bool any_needs_gradient(Values values) {
  const bool grad_mode = c10::AutogradState::get_tls_state().get_grad_mode();
  const auto needs = [&](const at::Tensor& t) {
    return t.defined() && needs_gradient(t, grad_mode);
  };
  for (const c10::IValue& value : values) {
    if (value.isTensor() && needs(value.toTensor())) return true;
    if (!value.isList()) continue;  // of tensors, of optional ones, or of something else
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isTensor() && needs(item.toTensor())) return true;
    }
  }
  return false;
}

// Where a gradient is needed, the op is what native does, operation by operation, out of place: so
// the gradient is right whatever provider is in force. Else it steps aside.
class GradientKernel final : public c10::OperatorKernel {
 public:
  explicit GradientKernel(const Op& op) : op_(op) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    const size_t n = op_.params().size();
    if (!any_needs_gradient(Values(*stack).slice(stack->size() - n))) {
      const at::AutoDispatchBelowAutograd below;
      handle.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
      return;
    }
    const std::vector<c10::IValue> values = pop_arguments(op_, stack);
    const Impl& native = *select_native(op_);
    Unpacked args(op_, values);
    Outputs out;
    native.body->call(native, values, out);
    check_results(op_, native, args.data(), static_cast<int>(n), out, /*donating=*/false);
    push_results(out, stack);
  }

 private:
  const Op& op_;
};

template <class Kernel, class... Args>
torch::CppFunction boxed(c10::DispatchKey key, Args&&... args) {
  auto kernel = std::make_unique<Kernel>(std::forward<Args>(args)...);
  return torch::dispatch(key, torch::CppFunction::makeFromBoxedKernel(
                                  c10::BoxedKernel::makeFromFunctor(std::move(kernel))));
}

c10::FunctionSchema parse(const Op& op, const std::string& text) {
  try {
    return torch::jit::parseSchema(text);
  } catch (const std::exception& e) {
    throw Error(ErrorKind::kValue,
                op.qualified_name() + ": torch can't read the schema " + text + ": " + e.what());
  }
}

void check_free(const Op& op, const std::string& overload) {
  const auto found = c10::Dispatcher::singleton().findSchema({"vllm_ir::" + op.name(), overload});
  if (!found) return;
  throw Error(ErrorKind::kDuplicate,
              op.qualified_name() + ": torch already has an operator of this name, " +
                  found->debug() + ". Another package defines it; choose another op name.");
}

std::string dotted(const std::string& overload) { return overload.empty() ? "" : "." + overload; }

void define_overload(torch::Library& library, const Op& op, c10::FunctionSchema schema,
                     bool donating) {
  const std::string name = op.name() + dotted(schema.overload_name());
  library.def(std::move(schema), {at::Tag::pt2_compliant_tag});
  library.impl(name.c_str(),
               boxed<SelectingKernel>(c10::DispatchKey::CompositeExplicitAutograd, op, donating));
  library.impl(name.c_str(), boxed<GradientKernel>(c10::DispatchKey::Autograd, op));
}

}  // namespace

EagerDonation::EagerDonation() noexcept { t_eager_donation = true; }
EagerDonation::~EagerDonation() { t_eager_donation = false; }

void set_call_hooks(CallHooks hooks) noexcept { g_hooks = hooks; }
const CallHooks& call_hooks() noexcept { return g_hooks; }

void define_torch_op(Op& op, const std::string& schema, const std::string& donating_schema) {
  auto plain = parse(op, op.name() + schema);
  check_free(op, "");
  auto library = std::make_unique<torch::Library>(torch::Library::FRAGMENT, "vllm_ir", std::nullopt,
                                                  __FILE__, __LINE__);
  // The default first: torch.ops.vllm_ir.<op>(...) takes the first overload that fits.
  define_overload(*library, op, std::move(plain), /*donating=*/false);
  const auto define_another = [&](const char* overload, const std::string& text, bool donating) {
    auto another = parse(op, op.name() + "." + overload + text);
    check_free(op, overload);
    define_overload(*library, op, std::move(another), donating);
  };
  if (!donating_schema.empty()) {
    define_another("maybe_inplace", donating_schema, /*donating=*/true);
    define_another("donated", schema, /*donating=*/false);
  }
  // Kept for the life of the process: operators, like ops, are never taken back.
  static_cast<void>(library.release());
}

}  // namespace vllm_ir
