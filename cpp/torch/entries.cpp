// SPDX-License-Identifier: Apache-2.0
#include "cpp/torch/entries.h"

#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string_view>

#include "cpp/dispatch/error.h"

namespace vllm_ir {
namespace {

struct Known {
  const Entry* entry;
  std::string from;
};

std::mutex g_mutex;
// Leaked: impls point into it for ever.
std::map<std::string, Known>& known_entries() {
  static auto* const entries = new std::map<std::string, Known>;
  return *entries;
}

std::string signature_of(const std::vector<Param>& params, int tensor_outputs) {
  std::string text;
  for (const Param& p : params) {
    text += text.empty() ? "" : ", ";
    switch (p.kind) {
      case ParamKind::kTensor:
        text += "Tensor";
        break;
      case ParamKind::kFloat:
        text += "float";
        break;
      case ParamKind::kInt:
        text += "int";
        break;
      case ParamKind::kBool:
        text += "bool";
        break;
      case ParamKind::kString:
        text += "str";
        break;
      case ParamKind::kDType:
      case ParamKind::kOther:
        text += "object";
        break;
    }
    if (p.optional) text += "?";
  }
  text += " ->";
  for (int i = 0; i < tensor_outputs; ++i) text += i ? ", Tensor" : " Tensor";
  return text;
}

}  // namespace

void add_entries(const EntryTable& table, const std::string& from) {
  const std::lock_guard lock(g_mutex);
  auto& known = known_entries();
  for (size_t i = 0; i < table.count; ++i) {
    const Entry& e = table.entries[i];
    const auto found = known.find(e.name);
    const bool twice = std::any_of(table.entries, &e, [&](const Entry& before) {
      return std::string_view(before.name) == e.name;
    });
    if (twice) {
      throw Error(ErrorKind::kDuplicate, "vllm_ir.load_entries: entry '" + std::string(e.name) +
                                             "' stands twice in the table of " + from +
                                             ". Rename one of them.");
    }
    if (found != known.end() && found->second.entry->call != e.call) {
      throw Error(ErrorKind::kDuplicate, "vllm_ir.load_entries: entry '" + std::string(e.name) +
                                             "' of " + from + " is already taken by " +
                                             found->second.from + ". Rename one of them.");
    }
  }
  for (size_t i = 0; i < table.count; ++i) {
    known.emplace(table.entries[i].name, Known{&table.entries[i], from});
  }
}

std::vector<std::string> load_entries(const std::string& path) {
  const auto fail = [&](const std::string& why) {
    return Error(ErrorKind::kValue, "vllm_ir.load_entries: " + path + ": " + why);
  };
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw fail(std::string("can't be loaded: ") + dlerror());
  using Getter = const EntryTable* (*)();
  const auto getter = reinterpret_cast<Getter>(dlsym(library, "vllm_ir_entry_table"));
  if (!getter) throw fail("has no entry table. Use VLLM_IR_ENTRY_TABLE in one source file.");
  const EntryTable& table = *getter();
  if (table.abi != EntryTable{}.abi) {
    throw fail("was built with another vllm_ir/entry.h (version " + std::to_string(table.abi) +
               ", this is " + std::to_string(EntryTable{}.abi) + "). Build it again.");
  }
  if (table.torch_major != TORCH_VERSION_MAJOR || table.torch_minor != TORCH_VERSION_MINOR) {
    throw fail("was built for torch " + std::to_string(table.torch_major) + "." +
               std::to_string(table.torch_minor) + ", but vllm_ir for torch " +
               std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR) +
               ". Build it again.");
  }
  add_entries(table, path);
  std::vector<std::string> names;
  for (size_t i = 0; i < table.count; ++i) names.emplace_back(table.entries[i].name);
  return names;
}

const Entry* find_entry(const std::string& name, const std::string& where,
                        const std::vector<Param>& params, int tensor_outputs) {
  const std::lock_guard lock(g_mutex);
  const auto found = known_entries().find(name);
  if (found == known_entries().end()) {
    std::vector<std::string> names;
    for (const auto& [known, entry] : known_entries()) names.push_back(known);
    throw UnknownName(where, "entry", name, std::move(names));
  }
  const Entry* const entry = found->second.entry;
  const std::string want = signature_of(params, tensor_outputs), got = entry->signature();
  if (want != got) {
    throw Error(ErrorKind::kValue,
                where + ": entry '" + name + "' does not match native schema: (" + want +
                    ") is needed, got (" + got + "). Change the function's parameters.");
  }
  return entry;
}

}  // namespace vllm_ir
