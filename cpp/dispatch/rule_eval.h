// SPDX-License-Identifier: Apache-2.0
// Evaluates rules over an argument adaptor: at::Tensor in a call, fake tensors in lowering, plain
// structs in tests. An adaptor `Args` gives, for argument i:
//   bool is_none(i)                     DType dtype(i)          DeviceType device(i)
//   int device_index(i)                 int dims(i)             int64_t size(i, d), stride(i, d)
//   int64_t item_bytes(i)               Region region(i)        int64_t integer(i)
//   bool address(i, uintptr_t&)         false while compiling: a fake tensor has no address
//   bool row_stride_uniform(i)          leading dimensions collapse, proven without a guard
//   bool same_shape(i, j)               proven without a guard
//   bool strided(i)                     false for sparse, nested and the like, and for no tensor
// size, stride and integer return kSymbolic for what is symbolic. Nothing here adds a guard.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "cpp/dispatch/rule.h"

namespace vllm_ir {

template <class Args>
std::string shape_text(const Args& args, int i) {
  std::string out = "(";
  for (int d = 0; d < args.dims(i); ++d) {
    const int64_t n = args.size(i, d);
    out += (d ? ", " : "") + (n == kSymbolic ? "symbolic" : std::to_string(n));
  }
  return out + (args.dims(i) == 1 ? ",)" : ")");
}

namespace detail {

template <class Args>
int64_t last_size(const Args& args, int i) {
  return args.dims(i) ? args.size(i, args.dims(i) - 1) : 1;
}

// The stride from row to row of a tensor whose rows have one stride: that of the innermost leading
// dimension with more than one index. The stride of a dimension of size 1 may be anything.
template <class Args>
int64_t row_stride(const Args& args, int i) {
  const int last = args.dims(i) - 1;
  for (int d = last - 1; d >= 0; --d) {
    if (args.size(i, d) != 1) return args.stride(i, d);
  }
  return args.stride(i, last - 1);  // a single row
}

// Rows of one stride, each contiguous and no longer than the stride. Needs no row count.
template <class Args>
bool rows_are_distinct(const Args& args, int i) {
  const int last = args.dims(i) - 1;
  const int64_t width = args.size(i, last), row = row_stride(args, i);
  return args.row_stride_uniform(i) && args.stride(i, last) == 1 && width != kSymbolic &&
         row != kSymbolic && row >= width;
}

// Every element has a byte range of its own: each dimension, by growing stride, steps over all that
// the smaller ones span. A symbolic size only matters where a larger stride lies above it.
template <class Args>
bool elements_are_distinct(const Args& args, int i) {
  const int n = args.dims(i);
  for (int d = 0; d < n; ++d) {
    if (args.size(i, d) == 0) return true;
    if (args.stride(i, d) == kSymbolic) return n >= 2 && rows_are_distinct(args, i);
  }
  int64_t reached = 0;  // the largest offset of the dimensions handled so far
  int64_t last_stride = -1;
  int last_dim = -1;
  for (int step = 0; step < n; ++step) {
    int next = -1;
    for (int d = 0; d < n; ++d) {
      const int64_t stride = args.stride(i, d);
      const bool after = stride > last_stride || (stride == last_stride && d > last_dim);
      if (args.size(i, d) == 1 || !after) continue;
      if (next < 0 || stride < args.stride(i, next)) next = d;
    }
    if (next < 0) return true;
    const int64_t size = args.size(i, next), stride = args.stride(i, next);
    if (stride <= reached) return false;
    reached =
        size == kSymbolic ? std::numeric_limits<int64_t>::max() : reached + (size - 1) * stride;
    last_stride = stride;
    last_dim = next;
  }
  return true;
}

// Rows of two views of one buffer may interleave without meeting: the halves of a projection, say.
template <class Args>
bool rows_interleave(const Args& args, int i, int j, const Region& a, const Region& b) {
  if (args.dims(i) < 2 || args.dims(i) != args.dims(j)) return false;
  if (args.item_bytes(i) != args.item_bytes(j)) return false;
  const int last = args.dims(i) - 1;
  const int64_t size = args.size(i, last), stride = row_stride(args, i);
  const bool alike = args.row_stride_uniform(i) && args.row_stride_uniform(j) &&
                     stride == row_stride(args, j) && size == args.size(j, last) &&
                     args.stride(i, last) == 1 && args.stride(j, last) == 1;
  // kSymbolic is negative; two symbolic values are not known to be equal.
  if (!alike || stride <= 0 || size < 0 || a.begin == kSymbolic || b.begin == kSymbolic) {
    return false;
  }
  const int64_t row = stride * args.item_bytes(i), width = size * args.item_bytes(i);
  const int64_t gap = ((b.begin - a.begin) % row + row) % row;
  return gap >= width && gap + width <= row;
}

template <class Args>
bool apart(const Args& args, int i, int j) {
  const Region a = args.region(i), b = args.region(j);
  if (a.storage != b.storage) return true;
  const bool known =
      a.begin != kSymbolic && b.begin != kSymbolic && a.end != kSymbolic && b.end != kSymbolic;
  // Also when one is empty, wherever it lies.
  if (known && std::max(a.begin, b.begin) >= std::min(a.end, b.end)) return true;
  return rows_interleave(args, i, j, a, b);
}

template <class Args>
bool no_overlap(const Clause& c, const Args& args) {
  for (int p = 0; p < c.arg_count(); ++p) {
    const int i = c.arg(p);
    if (args.is_none(i)) continue;
    if (!elements_are_distinct(args, i)) return false;
    for (int q = 0; q < p; ++q) {
      if (!args.is_none(c.arg(q)) && !apart(args, c.arg(q), i)) return false;
    }
  }
  return true;
}

template <class Args>
bool within_last_dim(const Args& args, int i, int of) {
  const int64_t value = args.integer(i), size = last_size(args, of);
  return value != kSymbolic && size != kSymbolic && value >= 1 && value <= size;
}

}  // namespace detail

// Which of the tensors that the clause names has no sizes and strides to look at; -1 for none.
template <class Args>
int first_not_strided(const Clause& c, const Args& args) {
  const int first = c.kind() == ClauseKind::kWithinLastDim ? 1 : 0;  // the first is an integer
  for (int p = first; p < c.arg_count(); ++p) {
    if (!args.is_none(c.arg(p)) && !args.strided(c.arg(p))) return p;
  }
  return -1;
}

// Whether the clause accepts the arguments.
template <class Args>
inline bool holds(const Clause& c, const Args& args) {
  const int i = c.arg(0);
  // Among several tensors an absent one leaves the others to be compared.
  if (args.is_none(i) && c.kind() != ClauseKind::kNoOverlap) {
    return c.kind() != ClauseKind::kIsGiven;
  }
  const int j = c.arg(1);
  if (c.compares() && args.is_none(j)) return true;
  if (c.looks_at_layout() && first_not_strided(c, args) >= 0) return false;
  switch (c.kind()) {
    case ClauseKind::kIsNone:
      return false;
    case ClauseKind::kIsGiven:
      return true;
    case ClauseKind::kDtype:
      return c.allows(args.dtype(i));
    case ClauseKind::kDevice:
      return c.allows(args.device(i));
    case ClauseKind::kMinDims:
      return args.dims(i) >= c.number();
    case ClauseKind::kLastDimContiguous: {
      const int last = args.dims(i) - 1;
      if (last < 0) return true;
      const int64_t size = args.size(i, last);
      return args.stride(i, last) == 1 || size == 1 || size == 0;
    }
    case ClauseKind::kLastDimMultipleOf: {
      const int64_t size = detail::last_size(args, i);
      return size != kSymbolic && size % c.number() == 0;
    }
    case ClauseKind::kLastDimAtMost: {
      const int64_t size = detail::last_size(args, i);
      return size != kSymbolic && size <= c.number();
    }
    case ClauseKind::kFlattensForFree:
      return args.row_stride_uniform(i);
    case ClauseKind::kAligned: {
      uintptr_t address = 0;
      return args.address(i, address) && address % static_cast<uintptr_t>(c.number()) == 0;
    }
    case ClauseKind::kNoOverlap:
      return detail::no_overlap(c, args);
    case ClauseKind::kDtypeSameOr:
      return args.dtype(i) == args.dtype(j) || c.allows(args.dtype(i));
    case ClauseKind::kSameDevice:
      return args.device(i) == args.device(j) && args.device_index(i) == args.device_index(j);
    case ClauseKind::kSameShape:
      return args.same_shape(i, j);
    case ClauseKind::kMatchesLastDim:
      return args.dims(i) == 1 && args.size(i, 0) != kSymbolic &&
             args.size(i, 0) == detail::last_size(args, j);
    case ClauseKind::kWithinLastDim:
      return detail::within_last_dim(args, i, j);
  }
  return false;
}

// The first clause that rejects, or nullptr.
template <class Args>
inline const Clause* first_rejection(const Rule& rule, const Args& args) {
  for (const Clause& clause : rule.clauses()) {
    if (!holds(clause, args)) return &clause;
  }
  return nullptr;
}

// The counter slot of a rejection: what was seen, where that is one of a few values.
template <class Args>
int rejection_slot(const Clause& c, const Args& args) {
  switch (c.kind()) {
    case ClauseKind::kDtype:
    case ClauseKind::kDtypeSameOr:
      return static_cast<int>(args.dtype(c.arg(0)));
    case ClauseKind::kDevice:
      return static_cast<int>(args.device(c.arg(0)));
    default:
      return 0;
  }
}

// Why the clause rejects these arguments, with their values. Cold.
template <class Args>
std::string why_not(const Clause& c, const Args& args) {
  const int i = c.arg(0);
  const std::string& x = c.arg_name(0);
  const auto dtype = [&](int at) { return std::string(name_of(args.dtype(at))); };
  const auto device = [&](int at) {
    const int index = args.device_index(at);
    return std::string(name_of(args.device(at))) + (index < 0 ? "" : ":" + std::to_string(index));
  };
  const auto number = [](int64_t n) {
    return n == kSymbolic ? std::string("symbolic") : std::to_string(n);
  };
  const std::string needs =
      "; needs " + c.to_string() + (c.because().empty() ? "" : ": " + c.because());
  if (c.looks_at_layout()) {
    const int p = first_not_strided(c, args);
    if (p >= 0) return c.arg_name(p) + " is not a strided tensor" + needs;
  }
  switch (c.kind()) {
    case ClauseKind::kIsNone:
      return x + " is given" + needs;
    case ClauseKind::kIsGiven:
      return x + " is None" + needs;
    case ClauseKind::kDtype:
      return x + ".dtype is " + dtype(i) + needs;
    case ClauseKind::kDevice:
      return x + " is on " + device(i) + needs;
    case ClauseKind::kMinDims:
      return x + " has " + std::to_string(args.dims(i)) + " dimension(s)" + needs;
    case ClauseKind::kLastDimContiguous:
      return x + ".stride(-1) is " + number(args.stride(i, args.dims(i) - 1)) + needs;
    case ClauseKind::kLastDimMultipleOf:
    case ClauseKind::kLastDimAtMost:
      return x + ".shape[-1] is " + number(detail::last_size(args, i)) + needs;
    case ClauseKind::kFlattensForFree:
      return x + " does not flatten to rows without a copy" + needs;
    case ClauseKind::kAligned: {
      uintptr_t address = 0;
      if (!args.address(i, address)) return x + " has no address while compiling" + needs;
      const auto off = address % static_cast<uintptr_t>(c.number());
      return x + " starts " + std::to_string(off) + " byte(s) past the alignment" + needs;
    }
    case ClauseKind::kNoOverlap:
      return "elements share memory, or may" + needs;
    default:
      break;
  }
  const int j = c.arg(1);
  const std::string& y = c.arg_name(1);
  switch (c.kind()) {
    case ClauseKind::kDtypeSameOr:
      return x + ".dtype is " + dtype(i) + ", " + y + ".dtype is " + dtype(j) + needs;
    case ClauseKind::kSameDevice:
      return x + " is on " + device(i) + ", " + y + " on " + device(j) + needs;
    case ClauseKind::kSameShape:
    case ClauseKind::kMatchesLastDim:
      return x + ".shape is " + shape_text(args, i) + ", " + y + ".shape is " +
             shape_text(args, j) + needs;
    case ClauseKind::kWithinLastDim:
      return x + " is " + number(args.integer(i)) + ", " + y + ".shape[-1] is " +
             number(detail::last_size(args, j)) + needs;
    default:
      return "not " + c.to_string();
  }
}

}  // namespace vllm_ir
