// SPDX-License-Identifier: Apache-2.0
// Registration, priorities, switches and counters for the Python facade. Thin: each function
// translates arguments and calls the layer that knows.
#include "cpp/python/bindings.h"

#include <torch/csrc/utils/pybind.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "cpp/dispatch/registry.h"
#include "cpp/dispatch/roll_up.h"
#include "cpp/dispatch/scope.h"
#include "cpp/dispatch/switches.h"
#include "cpp/python/errors.h"
#include "cpp/python/irop.h"
#include "cpp/python/python_body.h"
#include "cpp/torch/careful.h"
#include "cpp/torch/entries.h"
#include "cpp/torch/run.h"
#include "cpp/torch/torch_op.h"

namespace vllm_ir {
namespace {

using Names = std::vector<std::string>;
// name, kind, optional, has_default, activation
using ParamTuple = std::tuple<std::string, std::string, bool, bool, bool>;
// kind, parameter names, allowed values, number, why the clause is there
using ClauseTuple = std::tuple<std::string, Names, Names, int64_t, std::string>;

Op& op_named(const std::string& name) {
  if (Op* op = Registry::instance().find_op(name)) return *op;
  Names known;
  for (const Op* op : Registry::instance().ops()) known.push_back(op->name());
  throw UnknownName("vllm_ir", "op", name, std::move(known));
}

ParamKind kind_named(const std::string& name) {
  if (name == "Tensor") return ParamKind::kTensor;
  if (name == "float") return ParamKind::kFloat;
  if (name == "int") return ParamKind::kInt;
  if (name == "bool") return ParamKind::kBool;
  if (name == "str") return ParamKind::kString;
  if (name == "dtype") return ParamKind::kDType;
  return ParamKind::kOther;
}

ClauseSpec clause_from(const ClauseTuple& clause) {
  const auto& [kind, args, values, number, because] = clause;
  return make_clause(kind, args, values, number, because);
}

void define_op(const std::string& name, const std::vector<ParamTuple>& params, bool allow_inplace,
               int tensor_outputs, const std::string& schema, const std::string& donating_schema,
               const std::string& source) {
  OpSpec spec{name, {}, allow_inplace, tensor_outputs, source};
  for (const auto& [param, kind, optional, has_default, activation] : params) {
    spec.params.push_back({param, kind_named(kind), optional, has_default, activation});
  }
  Op* const op = Registry::instance().add_op(std::move(spec));
  try {
    define_torch_op(*op, schema, donating_schema);
  } catch (...) {
    Registry::instance().discard(op);
    throw;
  }
}

void add_impl(const std::string& op_name, const std::string& provider, const py::object& function,
              const py::object& callable, const py::dict& options) {
  Op& op = op_named(op_name);
  const auto text = [&](const char* key) { return options[key].cast<std::string>(); };
  const auto flag = [&](const char* key) { return options[key].cast<bool>(); };
  ImplSpec spec;
  spec.provider = provider;
  spec.supported = flag("supported");
  spec.unsupported_reason = text("unsupported_reason");
  spec.inplace = flag("inplace");
  spec.batch_invariant = flag("batch_invariant");
  spec.source = text("source");
  if (!callable.is_none()) spec.accepts = Accepts::kCallable;
  if (!options["clauses"].is_none()) {
    spec.accepts = Accepts::kRule;
    for (const auto& c : options["clauses"].cast<std::vector<ClauseTuple>>()) {
      spec.clauses.push_back(clause_from(c));
    }
  }
  auto body = std::make_unique<PythonBody>(
      op, function, callable.is_none() ? py::object() : callable, flag("memoise"));
  const std::string entry = text("entry");
  if (!entry.empty()) {
    const std::string where = op.qualified_name() + "." + provider;
    body->entry = find_entry(entry, where, op.params(), op.tensor_outputs());
    if (body->entry->checks == Checks::kInRule && spec.accepts != Accepts::kRule) {
      throw Error(ErrorKind::kValue, where + ": entry '" + entry +
                                         "' leaves all checks to a rule, got none. Give "
                                         "supports_args=rules... that say what it can take.");
    }
  }
  spec.body = body.get();
  op.add_impl(std::move(spec));
  static_cast<void>(body.release());  // lives with the impl, for ever
}

Mode mode_of(bool compiling) { return compiling ? Mode::kCompiling : Mode::kEager; }

// The names in force here, in order, and the names that were asked for and dropped, with reasons.
py::tuple priority_of(const std::string& op_name, bool compiling) {
  const Op& op = op_named(op_name);
  const Table& table = *effective_table(op, g_switches.load(), mode_of(compiling));
  py::list dropped;
  for (const Dropped& d : table.dropped) {
    dropped.append(py::make_tuple(d.impl->provider, d.reason));
  }
  return py::make_tuple(table.providers(), dropped);
}

// The user's names and the defaults that are asked for here.
py::tuple request_of(const std::string& op_name, bool compiling) {
  const PriorityRequest request = effective_request(op_named(op_name), mode_of(compiling));
  return py::make_tuple(request.user, request.defaults);
}

// The providers of a request that can run here, in the order in which they are tried.
Names order_of(const std::string& op_name, const Names& user, const Names& defaults) {
  return op_named(op_name).table_for({user, defaults})->providers();
}

// A text that is the same exactly when the first `count` ops select in the same way. Guards of
// compiled code ask for it at every call, so texts are kept by table.
py::object selection_token(size_t count, bool compiling) {
  static auto* const tokens = new std::map<std::vector<const void*>, py::object>;
  const uint64_t switches = g_switches.load();
  const bool strict = Switches::has(switches, Switch::kStrict);
  const std::vector<Op*> ops = Registry::instance().first_ops(count);
  std::vector<const void*> key{strict ? &g_switches : nullptr};
  const Mode mode = mode_of(compiling);
  for (const Op* op : ops) key.push_back(effective_table(*op, switches, mode));
  const auto found = tokens->find(key);
  if (found != tokens->end()) return found->second;
  std::string text = strict ? "strict" : "";
  for (const Op* op : ops) {
    const Table& table = *effective_table(*op, switches, mode);
    text += (text.empty() ? "" : " ") + op->name() + "=";
    for (const Impl* impl : table.order)
      text += (impl == table.order[0] ? "" : ",") + impl->provider;
    if (strict && !table.demanded.empty()) text += "!" + table.demanded;
  }
  return tokens->emplace(std::move(key), py::str(text)).first->second;
}

void set_default(const std::string& op_name, Names names) {
  Op& op = op_named(op_name);
  op.set_default(std::move(names));
  if (!op.configured().empty()) give_list_notice(op, *op.table());
}

py::dict counts_of(const std::string& op_name, bool reset) {
  const Op& op = op_named(op_name);
  py::dict out;
  for (const ImplCounts& counts : roll_up(op)) {
    py::list rejections;
    for (const auto& [reason, n] : counts.rejections) rejections.append(py::make_tuple(reason, n));
    out[py::str(counts.provider)] = py::make_tuple(counts.selected, rejections);
  }
  out[py::str("")] = op.gradient_calls.load(std::memory_order_relaxed);
  if (reset) {
    reset_counts(op);
    op.gradient_calls.store(0, std::memory_order_relaxed);
  }
  return out;
}

std::string rule_text(const std::vector<ClauseTuple>& clauses) {
  std::string out;
  for (const ClauseTuple& c : clauses) {
    out += (out.empty() ? "" : " & ") + clause_from(c).to_string();
  }
  return out;
}

template <class... Args>
void call_hook(PyObject* hook, Args&&... args) {
  const py::gil_scoped_acquire lock;
  if (hook) py::reinterpret_borrow<py::function>(hook)(std::forward<Args>(args)...);
}

void set_hooks(const py::dict& hooks) {
  const auto take = [&](const char* name) { return py::object(hooks[name]).release().ptr(); };
  g_facade = {take("impl_failed"), take("callable_misbehaved"), take("notice"), take("trace"),
              take("alias")};
  set_call_hooks({[](const Op& op, const Table& table) {
                    std::vector<std::string> unreachable;
                    for (const Impl* impl : table.unreachable)
                      unreachable.push_back(impl->provider);
                    call_hook(g_facade.notice, op.name(), table.priority_not_set,
                              table.native_appended, unreachable, table.order.back()->provider);
                  },
                  [](const Op& op, const std::string& decision) {
                    call_hook(g_facade.trace, op.name(), decision);
                  },
                  &raise_through_torch});
  set_alias_notice([](const Op& op, const Impl& impl, const Param& param) {
    call_hook(g_facade.alias, op.name(), impl.provider, param.name);
  });
}

}  // namespace

void init_bindings(py::module_& m) {
  py::register_exception_translator([](std::exception_ptr p) {
    try {
      if (p) std::rethrow_exception(p);
    } catch (const Error& error) {
      set_python_error(error);
    }
  });
  m.def("define_op", &define_op);
  m.def("add_impl", &add_impl);
  m.def("set_hooks", &set_hooks);
  m.def("load_entries", &load_entries);
  m.def("rule_text", &rule_text);

  m.def("set_default", &set_default);
  m.def("configured", [](const std::string& op) { return op_named(op).configured(); });
  m.def("set_platform_default", [](const std::string& op, Names names, bool compiling) {
    return op_named(op).set_platform_default(std::move(names), mode_of(compiling));
  });
  m.def("priority_of", &priority_of);
  m.def("request_of", &request_of);
  m.def("order_of", &order_of);
  m.def("selection_token", &selection_token);
  m.def("counts_of", &counts_of);
  m.def("interned_tables", [](const std::string& op) { return op_named(op).interned_tables(); });

  m.def("open_scopes", [] { return g_switches.load() / kOneScope; });
  m.def("set_trace", [](bool on) { g_switches.set(Switch::kTrace, on); });
  m.def("set_strict", [](bool on) { g_switches.set(Switch::kStrict, on); });
  m.def("is_strict", [] { return Switches::has(g_switches.load(), Switch::kStrict); });
  m.def("set_batch_invariant", [](bool on) { Registry::instance().set_batch_invariant(on); });
  m.def("is_batch_invariant", [] { return Registry::instance().batch_invariant(); });
  m.def("set_ask_unwrapped", &set_ask_unwrapped);
}

}  // namespace vllm_ir
