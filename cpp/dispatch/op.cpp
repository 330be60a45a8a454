// SPDX-License-Identifier: Apache-2.0
#include "cpp/dispatch/op.h"

#include <algorithm>
#include <utility>

#include "cpp/dispatch/error.h"
#include "cpp/dispatch/registry.h"
#include "cpp/dispatch/switches.h"

namespace vllm_ir {
namespace {

// Enough for every distinct decision of a long run; a bound, so that a hostile stream of new
// decisions can't grow the set without end.
constexpr size_t kMaxDecisions = 4096;

void check_name(const std::string& where, const char* noun, const std::string& name) {
  if (!is_valid_name(name)) {
    throw Error(ErrorKind::kValue, where + ": " + noun + " name '" + name +
                                       "' is invalid. It must match ^[a-z_][a-z0-9_]*$.");
  }
}

void check_spec(const OpSpec& spec) {
  check_name("vllm_ir", "op", spec.name);
  const std::string where = "vllm_ir." + spec.name;
  if (spec.params.size() > static_cast<size_t>(kMaxParams)) {
    throw Error(ErrorKind::kValue, where + ": takes " + std::to_string(spec.params.size()) +
                                       " parameters. At most " + std::to_string(kMaxParams) +
                                       " are possible.");
  }
  if (spec.tensor_outputs > kMaxResults) {
    throw Error(ErrorKind::kValue, where + ": returns " + std::to_string(spec.tensor_outputs) +
                                       " tensors. At most " + std::to_string(kMaxResults) +
                                       " are possible.");
  }
  int activations = 0;
  for (const Param& param : spec.params) {
    if (!param.activation) continue;
    ++activations;
    if (param.kind != ParamKind::kTensor) {
      throw Error(ErrorKind::kValue,
                  where + ": activation '" + param.name +
                      "' is not a Tensor. Name the activations with activations=[...].");
    }
  }
  if (spec.allow_inplace && activations != spec.tensor_outputs) {
    throw Error(ErrorKind::kValue,
                where + ": allow_inplace=True needs one Tensor output per activation, got " +
                    std::to_string(spec.tensor_outputs) + " output(s) for " +
                    std::to_string(activations) + " activation(s).");
  }
}

std::string key_of(const PriorityRequest& request, const Table& table) {
  std::string key = table.demanded + (request.user.empty() && request.defaults.empty() ? "!" : "|");
  for (const Impl* impl : table.order) key += impl->provider + ",";
  for (const Dropped& dropped : table.dropped) {
    key += "|" + dropped.impl->provider + ":" + dropped.reason;
  }
  key += table.native_appended ? "+" : "";
  for (const Impl* impl : table.unreachable) key += "!" + impl->provider;
  return key;
}

}  // namespace

Op::Op(OpSpec spec) : spec_(std::move(spec)) { check_spec(spec_); }

const Impl* Op::add_impl(ImplSpec spec) {
  const std::string where = qualified_name();
  check_name(where, "provider", spec.provider);
  const std::lock_guard lock(mutex_);
  const Impl* const other = find_locked(spec.provider);
  const bool native = spec.provider == kNative;
  if (spec.provider == "unfused" || (native && other)) {
    throw Error(ErrorKind::kDuplicate,
                where + ": provider '" + spec.provider + "' is reserved" +
                    (other ? ": it is the op's own function at " + other->source : "") +
                    ". Registered at " + spec.source +
                    "; choose another name for this implementation.");
  }
  if (impls_.empty() && !native) {
    throw Error(ErrorKind::kValue, where + ": the first implementation must be native, got '" +
                                       spec.provider + "'. Register native before it.");
  }
  if (native && (!spec.supported || spec.accepts != Accepts::kAlways)) {
    throw Error(ErrorKind::kValue,
                where + ".native: native must be supported and accept all arguments.");
  }
  if (other) {
    throw Error(ErrorKind::kDuplicate, where + ": provider '" + spec.provider +
                                           "' is already registered at " + other->source +
                                           "; the second registration is at " + spec.source +
                                           ". Import the module once, or choose another name.");
  }
  if (spec.inplace && !spec_.allow_inplace) {
    throw Error(ErrorKind::kValue, where + "." + spec.provider +
                                       ": inplace=True needs an op with allow_inplace=True.");
  }
  impls_.push_back(std::make_unique<Impl>(std::move(spec), spec_.params, spec_.name));
  publish();
  return impls_.back().get();
}

const Impl* Op::find_locked(const std::string& provider) const {
  const auto it = std::find_if(impls_.begin(), impls_.end(),
                               [&](const auto& impl) { return impl->provider == provider; });
  return it == impls_.end() ? nullptr : it->get();
}

const Impl* Op::find_impl(const std::string& provider) const {
  const std::lock_guard lock(mutex_);
  return find_locked(provider);
}

std::vector<const Impl*> Op::impls_locked() const {
  std::vector<const Impl*> out;
  for (const auto& impl : impls_) out.push_back(impl.get());
  return out;
}

std::vector<const Impl*> Op::impls() const {
  const std::lock_guard lock(mutex_);
  return impls_locked();
}

std::vector<std::string> Op::providers() const {
  std::vector<std::string> names;
  for (const Impl* impl : impls()) names.push_back(impl->provider);
  return names;
}

void Op::check_known(const std::vector<std::string>& names) const {
  for (const std::string& name : names) {
    if (find_locked(name)) continue;
    std::vector<std::string> known;
    for (const auto& i : impls_) known.push_back(i->provider);
    throw UnknownName(qualified_name(), "provider", name, std::move(known));
  }
}

void Op::check_names(const std::vector<std::string>& names) const {
  check_known(names);
  if (!Switches::has(g_switches.load(), Switch::kStrict)) return;
  for (const std::string& name : names) {
    const Impl* const impl = find_locked(name);
    if (impl->supported) continue;
    throw Error(ErrorKind::kRuntime,
                qualified_name() + "." + name + ": strict mode: unsupported here (" +
                    impl->unsupported_reason + "). Remove it from the priority list.");
  }
}

const Table* Op::intern_table(const PriorityRequest& request) {
  auto table = build_table(impls_locked(), request, Registry::instance().batch_invariant());
  check_invariants(*table);
  auto& slot = interned_[key_of(request, *table)];
  if (!slot) slot = std::move(table);
  return slot.get();
}

void Op::publish() {
  if (impls_.empty()) return;  // native will publish
  for (size_t mode = 0; mode < kModeCount; ++mode) {
    const Table* table = intern_table({configured_, platform_[mode]});
    // Release: a call that loads the pointer must see the table behind it.
    tables_[mode].store(table, std::memory_order_release);
  }
  for (auto& [names, list] : lists_) {
    list->table.store(intern_table({names, {}}), std::memory_order_release);
  }
}

void Op::set_default(std::vector<std::string> names) {
  const std::lock_guard lock(mutex_);
  check_names(names);
  configured_ = std::move(names);
  publish();
}

std::vector<std::string> Op::configured() const {
  const std::lock_guard lock(mutex_);
  return configured_;
}

std::vector<std::string> Op::set_platform_default(std::vector<std::string> names, Mode mode) {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> missing;
  for (const std::string& name : names) {
    if (!find_locked(name)) missing.push_back(name);
  }
  platform_[static_cast<size_t>(mode)] = std::move(names);
  publish();
  return missing;
}

const PriorityList* Op::intern(const std::vector<std::string>& names) {
  const std::lock_guard lock(mutex_);
  const auto found = lists_.find(names);
  if (found != lists_.end() && !Switches::has(g_switches.load(), Switch::kStrict)) {
    return found->second.get();
  }
  check_names(names);
  auto& list = lists_[names];
  if (!list) {
    list = std::make_unique<PriorityList>();
    list->names = names;
    list->table.store(intern_table({names, {}}), std::memory_order_release);
  }
  return list.get();
}

PriorityRequest Op::request(Mode mode) const {
  const std::lock_guard lock(mutex_);
  return {configured_, platform_[static_cast<size_t>(mode)]};
}

const Table* Op::table_for(const PriorityRequest& request) {
  const std::lock_guard lock(mutex_);
  check_known(request.user);
  return intern_table(request);
}

void Op::rebuild() {
  const std::lock_guard lock(mutex_);
  publish();
}

bool Op::first_time(const std::string& cause) const {
  const std::lock_guard lock(mutex_);
  return causes_.insert(cause).second;
}

bool Op::new_decision(const std::string& decision) const {
  const std::lock_guard lock(mutex_);
  return decisions_.size() < kMaxDecisions && decisions_.insert(decision).second;
}

size_t Op::interned_tables() const {
  const std::lock_guard lock(mutex_);
  return interned_.size();
}

}  // namespace vllm_ir
