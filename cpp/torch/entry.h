// SPDX-License-Identifier: Apache-2.0
// The public header for C++ providers, in tree and out: an *entry* is a plain C++ function that an
// eager call reaches without boxing. The schema comes from its signature:
//
//   at::Tensor my_norm(const at::Tensor& x, const at::Tensor* weight, double epsilon,
//                      std::optional<int64_t> variance_size);
//   VLLM_IR_ENTRY_TABLE(vllm_ir::entry<&my_norm>("my_library::my_norm"))
//
// Python then names it: op.register_impl("mine", entry="my_library::my_norm")(traceable_body).
//
// Parameters: const at::Tensor& (Tensor), const at::Tensor* (Tensor?, null for None), double,
// int64_t, bool, std::string_view, and std::optional of those four. Results: at::Tensor or a tuple
// of them.
// A library is built for one torch minor; vllm_ir.load_entries() refuses one built for another. It
// links torch_cpu and c10 (-lc10 -ltorch_cpu, from torch/lib).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/headeronly/version.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace vllm_ir {

enum class Tag : uint8_t { kNone, kTensor, kInt, kFloat, kBool, kObject, kString };

// One argument of a call, unpacked. Tensors and texts are borrowed from the caller. kObject marks
// what only Python impls can take (a list, a dtype, a symbolic number); it has no value here.
struct Arg {
  Tag tag = Tag::kNone;
  uint32_t length;  // of `text`, in bytes
  union {
    const at::Tensor* tensor;
    int64_t integer;
    double real;
    bool flag;
    const char* text;  // UTF-8
  };

  // False, and nothing is set, for a text that is too long to be one of a kernel's options.
  bool set_text(const char* from, size_t bytes) noexcept {
    if (bytes > UINT32_MAX) return false;
    tag = Tag::kString;
    length = static_cast<uint32_t>(bytes);
    text = from;
    return true;
  }
};

inline constexpr size_t kMaxOutputs = 8;

// The results of a call: up to kMaxOutputs tensors in place, so that a call allocates nothing.
class Outputs {
 public:
  Outputs() = default;
  ~Outputs() { clear(); }
  Outputs(const Outputs&) = delete;
  Outputs& operator=(const Outputs&) = delete;

  void push(at::Tensor&& t) { new (slot(size_)) at::Tensor(std::move(t)), ++size_; }
  size_t size() const noexcept { return size_; }
  at::Tensor& operator[](size_t i) noexcept { return *std::launder(slot(i)); }
  void clear() noexcept {
    while (size_) (*this)[--size_].~Tensor();
  }

 private:
  at::Tensor* slot(size_t i) noexcept { return reinterpret_cast<at::Tensor*>(bytes_) + i; }

  size_t size_ = 0;
  alignas(at::Tensor) std::byte bytes_[kMaxOutputs * sizeof(at::Tensor)];
};

// What happens to Python's lock while the entry runs. Asynchronous launches are too short to give
// it up (30 ns); what can block or compute for long must let other threads run.
enum class Gil : uint8_t { kHold, kRelease, kReleaseWhenLarge };
// kReleaseWhenLarge releases from this many elements of the first tensor on, on CPU.
inline constexpr int64_t kLargeNumel = 32768;

// Who makes sure that the arguments are what the entry can take: the entry itself, or the rule of
// the impl that names it. An entry that leaves it to the rule is refused to impls without one.
enum class Checks : uint8_t { kInEntry, kInRule };

struct Entry {
  const char* name;                    // "library::function", unique in the process
  void (*call)(const Arg*, Outputs&);  // may throw
  std::string (*signature)();          // "Tensor, Tensor?, float, int? -> Tensor"
  Gil gil;
  Checks checks;
};

namespace detail {

template <class T>
struct Convert;
template <>
struct Convert<const at::Tensor&> {
  static constexpr const char* name = "Tensor";
  static const at::Tensor& from(const Arg& a) { return *a.tensor; }
};
template <>
struct Convert<const at::Tensor*> {
  static constexpr const char* name = "Tensor?";
  static const at::Tensor* from(const Arg& a) { return a.tag == Tag::kNone ? nullptr : a.tensor; }
};
template <>
struct Convert<double> {
  static constexpr const char* name = "float";
  static double from(const Arg& a) { return a.real; }
};
template <>
struct Convert<int64_t> {
  static constexpr const char* name = "int";
  static int64_t from(const Arg& a) { return a.integer; }
};
template <>
struct Convert<bool> {
  static constexpr const char* name = "bool";
  static bool from(const Arg& a) { return a.flag; }
};
template <>
struct Convert<std::string_view> {
  static constexpr const char* name = "str";
  static std::string_view from(const Arg& a) { return {a.text, a.length}; }
};
template <class T>
struct Convert<std::optional<T>> {
  static_assert(!std::is_same_v<T, at::Tensor>, "an optional tensor is a const at::Tensor*");
  static constexpr const char* name = std::is_same_v<T, double>    ? "float?"
                                      : std::is_same_v<T, int64_t> ? "int?"
                                      : std::is_same_v<T, bool>    ? "bool?"
                                                                   : "str?";
  static std::optional<T> from(const Arg& a) {
    return a.tag == Tag::kNone ? std::nullopt : std::optional<T>(Convert<T>::from(a));
  }
};

inline void push_result(Outputs& out, at::Tensor&& t) { out.push(std::move(t)); }
template <class... Ts>
void push_result(Outputs& out, std::tuple<Ts...>&& results) {
  static_assert((std::is_same_v<Ts, at::Tensor> && ...), "every result is an at::Tensor");
  std::apply([&](Ts&&... t) { (out.push(std::move(t)), ...); }, std::move(results));
}

template <class R>
struct ResultCount : std::integral_constant<size_t, 1> {};
template <class... Ts>
struct ResultCount<std::tuple<Ts...>> : std::integral_constant<size_t, sizeof...(Ts)> {};

template <auto F, class Type = decltype(F)>
struct Trampoline;
template <auto F, class R, class... P>
struct Trampoline<F, R (*)(P...)> {
  template <size_t... I>
  static void invoke(const Arg* args, Outputs& out, std::index_sequence<I...>) {
    push_result(out, F(Convert<P>::from(args[I])...));
  }
  static void call(const Arg* args, Outputs& out) {
    invoke(args, out, std::index_sequence_for<P...>{});
  }
  static std::string signature() {
    std::string text;
    ((text += (text.empty() ? "" : ", ") + std::string(Convert<P>::name)), ...);
    text += " ->";
    for (size_t i = 0; i < ResultCount<R>::value; ++i) text += i ? ", Tensor" : " Tensor";
    return text;
  }
};

}  // namespace detail

template <auto F>
constexpr Entry entry(const char* name, Gil gil = Gil::kHold, Checks checks = Checks::kInEntry) {
  return Entry{name, &detail::Trampoline<F>::call, &detail::Trampoline<F>::signature, gil, checks};
}

// Changes with everything in this header that a built library depends on.
inline constexpr int kEntryAbi = 1;

// What a library hands over. The first three fields never move, so that a loader can refuse a
// library of another version before it reads the rest.
struct EntryTable {
  int abi = kEntryAbi;
  int torch_major = TORCH_VERSION_MAJOR;
  int torch_minor = TORCH_VERSION_MINOR;
  size_t count = 0;
  const Entry* entries = nullptr;
};

}  // namespace vllm_ir

// Once per library.
#define VLLM_IR_ENTRY_TABLE(...)                                                             \
  extern "C" __attribute__((visibility("default"))) const ::vllm_ir::EntryTable*             \
  vllm_ir_entry_table() {                                                                    \
    static const ::vllm_ir::Entry entries[] = {__VA_ARGS__};                                 \
    static const ::vllm_ir::EntryTable table{::vllm_ir::kEntryAbi, TORCH_VERSION_MAJOR,      \
                                             TORCH_VERSION_MINOR,                            \
                                             sizeof(entries) / sizeof(entries[0]), entries}; \
    return &table;                                                                           \
  }
