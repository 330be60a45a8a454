// SPDX-License-Identifier: Apache-2.0
// An op: its parameters, its impls and the order in which they are tried. Writers take the op's
// lock and publish immutable tables; a call only loads a pointer.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "cpp/dispatch/impl.h"
#include "cpp/dispatch/table.h"

namespace vllm_ir {

// Who selects: an eager call, or the lowering of a compiled graph. Platforms have a default for
// each.
enum class Mode : uint8_t { kEager, kCompiling };
inline constexpr int kModeCount = 2;

// A user's list of one op, checked and interned: opening the same scope again finds the same one.
// Its table is replaced when a switch changes that the table depends on.
struct PriorityList {
  std::vector<std::string> names;
  std::atomic<const Table*> table{nullptr};
};

struct OpSpec {
  std::string name;
  std::vector<Param> params;
  bool allow_inplace = false;
  int tensor_outputs = 1;
  Source source;
};

class Op {
 public:
  // Throws Error(kValue) for a bad name, no activation to donate, and the like.
  explicit Op(OpSpec spec);

  const std::string& name() const noexcept { return spec_.name; }
  const std::vector<Param>& params() const noexcept { return spec_.params; }
  bool allow_inplace() const noexcept { return spec_.allow_inplace; }
  int tensor_outputs() const noexcept { return spec_.tensor_outputs; }
  const Source& source() const noexcept { return spec_.source; }
  std::string qualified_name() const { return "vllm_ir." + spec_.name; }

  // The table of the permanent priority. Acquire: pairs with the publishing store, so the table's
  // content is visible.
  const Table* table(Mode mode = Mode::kEager) const noexcept {
    return tables_[static_cast<size_t>(mode)].load(std::memory_order_acquire);
  }

  // Throws Error(kValue, kDuplicate) and changes nothing on failure. The first impl must be native.
  const Impl* add_impl(ImplSpec spec);
  const Impl* find_impl(const std::string& provider) const;  // nullptr when there is none
  std::vector<const Impl*> impls() const;                    // in order of registration
  std::vector<std::string> providers() const;

  // The permanent list. Throws UnknownName; in strict mode also for unsupported providers.
  void set_default(std::vector<std::string> names);
  std::vector<std::string> configured() const;
  // Names that no impl has yet are kept: they count as soon as one registers. Returns those names.
  std::vector<std::string> set_platform_default(std::vector<std::string> names, Mode mode);
  // A checked list for a scope. Throws as set_default does.
  const PriorityList* intern(const std::vector<std::string>& names);

  // What is asked for where no scope is open.
  PriorityRequest request(Mode mode) const;
  // The table of a request that was taken down earlier. Throws UnknownName for the user's names;
  // defaults that no impl has are skipped.
  const Table* table_for(const PriorityRequest& request);

  // Rebuild every table: a switch changed that tables depend on.
  void rebuild();

  // True the first time that `cause` is given; for notices that come once per op and cause. Causes
  // are few by their nature: a kind and a provider.
  bool first_time(const std::string& cause) const;
  // True the first time that a traced decision is given. Remembers a bounded number of them.
  bool new_decision(const std::string& decision) const;

  // Calls that ran native because a gradient was needed, whatever the priority said.
  mutable std::atomic<uint64_t> gradient_calls{0};

  size_t interned_tables() const;  // how many tables live; tests watch that it stops growing

 private:
  // Each needs the lock.
  void check_known(const std::vector<std::string>& names) const;
  void check_names(const std::vector<std::string>& names) const;  // and supported, in strict mode
  const Table* intern_table(const PriorityRequest& request);
  void publish();
  const Impl* find_locked(const std::string& provider) const;
  std::vector<const Impl*> impls_locked() const;

  const OpSpec spec_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Impl>> impls_;
  std::vector<std::string> configured_;
  std::array<std::vector<std::string>, kModeCount> platform_;
  std::map<std::vector<std::string>, std::unique_ptr<PriorityList>> lists_;
  std::map<std::string, std::unique_ptr<Table>> interned_;
  mutable std::unordered_set<std::string> causes_;
  mutable std::unordered_set<std::string> decisions_;
  std::array<std::atomic<const Table*>, kModeCount> tables_{};
};

}  // namespace vllm_ir
