// SPDX-License-Identifier: Apache-2.0
#include "cpp/torch/argument.h"

#include <c10/core/SymInt.h>

#include <algorithm>

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

}  // namespace

DType dtype_of(at::ScalarType type) noexcept {
  switch (type) {
    case at::kDouble:
      return DType::kFloat64;
    case at::kFloat:
      return DType::kFloat32;
    case at::kHalf:
      return DType::kFloat16;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kFloat8_e4m3fn:
      return DType::kFloat8E4M3FN;
    case at::kFloat8_e5m2:
      return DType::kFloat8E5M2;
    case at::kFloat8_e4m3fnuz:
      return DType::kFloat8E4M3FNUZ;
    case at::kFloat8_e5m2fnuz:
      return DType::kFloat8E5M2FNUZ;
    case at::kLong:
      return DType::kInt64;
    case at::kInt:
      return DType::kInt32;
    case at::kShort:
      return DType::kInt16;
    case at::kChar:
      return DType::kInt8;
    case at::kByte:
      return DType::kUInt8;
    case at::kBool:
      return DType::kBool;
    case at::kComplexFloat:
      return DType::kComplex64;
    case at::kComplexDouble:
      return DType::kComplex128;
    default:
      return DType::kOther;
  }
}

DeviceType device_type_of(c10::DeviceType type) noexcept {
  switch (type) {
    case c10::DeviceType::CPU:
      return DeviceType::kCpu;
    case c10::DeviceType::HIP:  // torch shows ROCm devices as cuda
    case c10::DeviceType::CUDA:
      return DeviceType::kCuda;
    case c10::DeviceType::XPU:
      return DeviceType::kXpu;
    case c10::DeviceType::MPS:
      return DeviceType::kMps;
    case c10::DeviceType::Meta:
      return DeviceType::kMeta;
    case c10::DeviceType::PrivateUse1:
      return DeviceType::kPrivateUse1;
    default:
      return DeviceType::kOther;
  }
}

void TensorArgs::read(int i) const {
  const at::TensorImpl* const t = impl(i);
  const bool symbolic = t->has_symbolic_sizes_strides();
  const c10::Device device = t->device();
  facts_[static_cast<size_t>(i)] = Facts{symbolic ? nullptr : t->sizes().data(),
                                         symbolic ? nullptr : t->strides().data(),
                                         static_cast<int>(t->dim()),
                                         dtype_of(t->dtype().toScalarType()),
                                         device_type_of(device.type()),
                                         static_cast<int8_t>(device.index())};
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
