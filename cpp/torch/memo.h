// SPDX-License-Identifier: Apache-2.0
// Remembers the verdicts of one callable that promised to look at nothing but dtypes, devices,
// shapes past dimension 0, strides, alignment and plain values. Opt-in: a callable that reads the
// batch size, tensor values or outside state must not be memoised.
// Not thread-safe; its owner holds Python's lock.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>

#include "cpp/torch/entry.h"

namespace vllm_ir {

class Memo {
 public:
  struct Key {
    std::array<uint64_t, 64> words;
    size_t size = 0;
    uint64_t hash = 0x9E3779B97F4A7C15ull;

    bool put(uint64_t word) noexcept {
      if (size == words.size()) return false;
      words[size++] = word;
      hash = (hash ^ word) * 0xff51afd7ed558ccdull;
      hash ^= hash >> 32;
      return true;
    }
  };

  // False when the arguments can't be a key: an object, a tensor that isn't strided or has no
  // memory (a fake one), a symbolic shape, too many dimensions.
  static bool make_key(const Arg* args, int count, Key& key) {
    for (int i = 0; i < count; ++i) {
      const Arg& arg = args[i];
      if (arg.tag == Tag::kObject || !key.put(static_cast<uint64_t>(arg.tag))) return false;
      const bool fits = arg.tag == Tag::kTensor   ? put_tensor(*arg.tensor, key)
                        : arg.tag == Tag::kString ? put_text({arg.text, arg.length}, key)
                                                  : put_scalar(arg, key);
      if (!fits) return false;
    }
    return true;
  }

  std::optional<bool> find(const Key& key) const noexcept {
    const Slot& slot = slots_[key.hash % slots_.size()];
    const bool same = slot.used && slot.key.hash == key.hash && slot.key.size == key.size &&
                      std::memcmp(slot.key.words.data(), key.words.data(), key.size * 8) == 0;
    return same ? std::optional<bool>(slot.verdict) : std::nullopt;
  }

  void store(const Key& key, bool verdict) noexcept {
    Slot& slot = slots_[key.hash % slots_.size()];
    slot.key = key;
    slot.verdict = verdict;
    slot.used = true;
  }

 private:
  struct Slot {
    Key key;
    bool verdict = false;
    bool used = false;
  };

  static bool put_scalar(const Arg& arg, Key& key) noexcept {
    uint64_t bits = 0;
    if (arg.tag == Tag::kInt) std::memcpy(&bits, &arg.integer, sizeof bits);
    if (arg.tag == Tag::kFloat) std::memcpy(&bits, &arg.real, sizeof bits);
    if (arg.tag == Tag::kBool) bits = arg.flag;
    return key.put(bits);
  }

  static bool put_text(std::string_view text, Key& key) noexcept {
    bool fits = key.put(text.size());
    for (size_t at = 0; fits && at < text.size(); at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + at, std::min<size_t>(8, text.size() - at));
      fits = key.put(word);
    }
    return fits;
  }

  static bool put_tensor(const at::Tensor& t, Key& key) {
    const auto* const impl = t.unsafeGetTensorImpl();
    const bool readable = t.layout() == at::kStrided && !t.is_nested() && !t.is_meta() &&
                          t.has_storage() && !t.key_set().has(c10::DispatchKey::Python);
    if (!readable || impl->has_symbolic_sizes_strides()) return false;
    const auto sizes = impl->sizes(), strides = impl->strides();
    const auto device = impl->device();
    const bool contiguous = impl->is_contiguous();
    const bool aligned = (reinterpret_cast<uintptr_t>(t.const_data_ptr()) & 15) == 0;
    key.put(static_cast<uint64_t>(static_cast<uint8_t>(t.scalar_type())) |
            static_cast<uint64_t>(static_cast<uint8_t>(device.type())) << 8 |
            static_cast<uint64_t>(static_cast<uint8_t>(device.index())) << 16 |
            static_cast<uint64_t>(sizes.size()) << 24 | uint64_t{contiguous} << 40 |
            uint64_t{aligned} << 41 | uint64_t{impl->requires_grad()} << 42);
    for (size_t d = 1; d < sizes.size(); ++d) {
      if (!key.put(static_cast<uint64_t>(sizes[d])) ||
          !key.put(static_cast<uint64_t>(strides[d]))) {
        return false;
      }
    }
    // A contiguous tensor's first stride follows from the rest, whatever the batch.
    return sizes.empty() || contiguous || key.put(static_cast<uint64_t>(strides[0]));
  }

  std::array<Slot, 4> slots_{};
};

}  // namespace vllm_ir
