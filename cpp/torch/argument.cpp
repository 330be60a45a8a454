// SPDX-License-Identifier: Apache-2.0
#include "cpp/torch/argument.h"

#include <c10/core/SymInt.h>

#include <algorithm>
#include <array>
#include <utility>

namespace vllm_ir {
namespace {

int64_t value_or_symbolic(const c10::SymInt& value) {
  return value.maybe_as_int().value_or(kSymbolic);
}

// Equal whatever the symbols are; the subtraction simplifies, and no guard is added.
bool provably_equal(const c10::SymInt& a, const c10::SymInt& b) {
  return (a - b).maybe_as_int() == 0;
}

bool provably_equal(int64_t a, int64_t b) { return a == b; }

bool is(const c10::SymInt& value, int64_t expected) { return value.maybe_as_int() == expected; }
bool is(int64_t value, int64_t expected) { return value == expected; }

// The leading dimensions step from row to row by one stride. A dimension of size 1 has no stride
// that matters.
template <class Int>
bool rows_collapse(const Int* sizes, const Int* strides, size_t dims) {
  const Int* inner_size = nullptr;
  const Int* inner_stride = nullptr;
  for (size_t d = dims - 1; d-- > 0;) {  // from the inside out
    if (is(sizes[d], 1)) continue;
    if (is(sizes[d], 0)) return true;
    if (inner_size && !provably_equal(strides[d], *inner_size * *inner_stride)) return false;
    inner_size = &sizes[d];
    inner_stride = &strides[d];
  }
  return true;
}

// Looked up once a tensor in every call: arrays, not switches.
const std::array<DType, static_cast<size_t>(at::ScalarType::NumOptions)> kDTypes = [] {
  std::array<DType, static_cast<size_t>(at::ScalarType::NumOptions)> table{};
  table.fill(DType::kOther);
  const std::pair<at::ScalarType, DType> known[] = {{at::kDouble, DType::kFloat64},
                                                    {at::kFloat, DType::kFloat32},
                                                    {at::kHalf, DType::kFloat16},
                                                    {at::kBFloat16, DType::kBFloat16},
                                                    {at::kFloat8_e4m3fn, DType::kFloat8E4M3FN},
                                                    {at::kFloat8_e5m2, DType::kFloat8E5M2},
                                                    {at::kFloat8_e4m3fnuz, DType::kFloat8E4M3FNUZ},
                                                    {at::kFloat8_e5m2fnuz, DType::kFloat8E5M2FNUZ},
                                                    {at::kFloat8_e8m0fnu, DType::kFloat8E8M0FNU},
                                                    {at::kUInt16, DType::kUInt16},
                                                    {at::kUInt32, DType::kUInt32},
                                                    {at::kUInt64, DType::kUInt64},
                                                    {at::kComplexHalf, DType::kComplex32},
                                                    {at::kLong, DType::kInt64},
                                                    {at::kInt, DType::kInt32},
                                                    {at::kShort, DType::kInt16},
                                                    {at::kChar, DType::kInt8},
                                                    {at::kByte, DType::kUInt8},
                                                    {at::kBool, DType::kBool},
                                                    {at::kComplexFloat, DType::kComplex64},
                                                    {at::kComplexDouble, DType::kComplex128}};
  for (const auto& [theirs, ours] : known) table[static_cast<size_t>(theirs)] = ours;
  return table;
}();

// Nested tensors say strided and have no sizes; a jagged one has a layout of its own.
bool is_strided(const at::TensorImpl& t) {
  return t.layout() == at::kStrided && !t.key_set().has(c10::DispatchKey::NestedTensorCPU) &&
         !t.key_set().has(c10::DispatchKey::NestedTensorCUDA);
}

constexpr size_t kTorchDevices = c10::COMPILE_TIME_MAX_DEVICE_TYPES;
const std::array<DeviceType, kTorchDevices> kDevices = [] {
  std::array<DeviceType, kTorchDevices> table{};
  table.fill(DeviceType::kOther);
  const std::pair<c10::DeviceType, DeviceType> known[] = {
      {c10::DeviceType::CPU, DeviceType::kCpu},
      {c10::DeviceType::CUDA, DeviceType::kCuda},
      {c10::DeviceType::HIP, DeviceType::kCuda},  // torch shows ROCm devices as cuda
      {c10::DeviceType::XPU, DeviceType::kXpu},
      {c10::DeviceType::MPS, DeviceType::kMps},
      {c10::DeviceType::Meta, DeviceType::kMeta},
      {c10::DeviceType::PrivateUse1, DeviceType::kPrivateUse1}};
  for (const auto& [theirs, ours] : known) table[static_cast<size_t>(theirs)] = ours;
  return table;
}();

}  // namespace

void TensorArgs::read(int i) const {
  const at::TensorImpl* const t = impl(i);
  const c10::Device device = t->device();
  Facts& facts = facts_[static_cast<size_t>(i)];
  facts = Facts{};
  facts.dtype = kDTypes[static_cast<size_t>(t->dtype().toScalarType())];
  facts.device = kDevices[static_cast<size_t>(device.type())];
  facts.device_index = static_cast<int8_t>(device.index());
  facts.strided = is_strided(*t);
  if (facts.strided) {
    facts.dims = static_cast<int>(t->dim());
    if (!t->has_symbolic_sizes_strides()) {
      facts.sizes = t->sizes().data();
      facts.strides = t->strides().data();
    }
  }
  known_ |= 1u << i;
}

int64_t TensorArgs::symbolic_size(int i, int d) const {
  return value_or_symbolic(impl(i)->sym_sizes()[static_cast<size_t>(d)]);
}

int64_t TensorArgs::symbolic_stride(int i, int d) const {
  return value_or_symbolic(impl(i)->sym_strides()[static_cast<size_t>(d)]);
}

bool TensorArgs::row_stride_uniform_slow(int i) const {
  const Facts& f = facts(i);
  const auto dims = static_cast<size_t>(f.dims);
  if (f.sizes) return rows_collapse(f.sizes, f.strides, dims);
  return rows_collapse(impl(i)->sym_sizes().data(), impl(i)->sym_strides().data(), dims);
}

bool TensorArgs::same_shape(int i, int j) const {
  const Facts &a = facts(i), &b = facts(j);
  if (a.dims != b.dims) return false;
  if (a.sizes && b.sizes) return std::equal(a.sizes, a.sizes + a.dims, b.sizes);
  const auto left = impl(i)->sym_sizes(), right = impl(j)->sym_sizes();
  for (size_t d = 0; d < left.size(); ++d) {
    if (!provably_equal(left[d], right[d])) return false;
  }
  return true;
}

Region TensorArgs::region(int i) const {
  const at::Tensor& t = tensor(i);
  if (!t.has_storage()) return {t.unsafeGetTensorImpl(), kSymbolic, kSymbolic};
  Region region{t.storage().unsafeGetStorageImpl(), kSymbolic, kSymbolic};
  const int64_t offset = value_or_symbolic(impl(i)->sym_storage_offset());
  if (offset == kSymbolic) return region;
  region.begin = offset * item_bytes(i);
  int64_t last = offset;  // the furthest element
  for (int d = 0; d < dims(i); ++d) {
    const int64_t n = size(i, d), step = stride(i, d);
    if (n == kSymbolic || step == kSymbolic) return region;
    if (n == 0) return {region.storage, region.begin, region.begin};
    last += (n - 1) * step;
  }
  region.end = (last + 1) * item_bytes(i);
  return region;
}

bool TensorArgs::address(int i, uintptr_t& out) const {
  const at::Tensor& t = tensor(i);
  // A fake or meta tensor has no memory, and asking would raise.
  if (t.is_meta() || t.key_set().has(c10::DispatchKey::Python) || !t.has_storage()) return false;
  out = reinterpret_cast<uintptr_t>(t.const_data_ptr());
  return true;
}

}  // namespace vllm_ir
