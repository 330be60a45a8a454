// SPDX-License-Identifier: Apache-2.0
// The activations of float32 numbers, from the exponential and the complementary error function.
// Included only by *_level.cpp files (see vector.h).
//
// Nothing but additions, multiplications, divisions and bits, each rounded by itself, so that every
// level gives the same bits. Stated errors are relative ones of the fits with their coefficients as
// written, in exact arithmetic; test_act_and_mul.cpp bounds the whole, float32's roundings
// included.
#pragma once

#include "cpp/kernels/act_and_mul.h"
#include "cpp/kernels/cpu/vector.h"

namespace vllm_ir::kernels::VLLM_IR_CPU_LEVEL {
namespace {

// Four vectors side by side. Each step of a formula waits for the one before; with four of them the
// processor has something to do meanwhile (a quarter of the time, on one core of a Zen 4).
struct Quad {
  Floats a, b, c, d;

  Quad(Floats a, Floats b, Floats c, Floats d) : a(a), b(b), c(c), d(d) {}
  Quad(Pair first, Pair second) : Quad(first.a, first.b, second.a, second.b) {}
  Quad(float f) : Quad(Floats{} + f, Floats{} + f, Floats{} + f, Floats{} + f) {}
  Pair first() const { return {a, b}; }
  Pair second() const { return {c, d}; }
};
constexpr int kQuadSize = 2 * kPairSize;

template <typename F>
inline Quad each(Quad x, Quad y, const F& f) {
  return {f(x.a, y.a), f(x.b, y.b), f(x.c, y.c), f(x.d, y.d)};
}
template <typename F>
inline Quad each(Quad x, const F& f) {
  return {f(x.a), f(x.b), f(x.c), f(x.d)};
}
inline Quad operator+(Quad x, Quad y) {
  return each(x, y, [](Floats a, Floats b) { return a + b; });
}
inline Quad operator-(Quad x, Quad y) {
  return each(x, y, [](Floats a, Floats b) { return a - b; });
}
inline Quad operator*(Quad x, Quad y) {
  return each(x, y, [](Floats a, Floats b) { return a * b; });
}
inline Quad operator/(Quad x, Quad y) {
  return each(x, y, [](Floats a, Floats b) { return a / b; });
}

// Where `a` is a NaN, `b`: what is clamped here is multiplied by its own argument in the end.
inline Floats smaller(Floats a, Floats b) {
#if defined(__AVX512F__)
  // GCC takes two instructions for what stands below.
  return (Floats)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b);
#else
  return a < b ? a : b;
#endif
}
inline Floats larger(Floats a, Floats b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
#else
  return a > b ? a : b;
#endif
}

// A sum with it has the nearest integer in its low bits, in two's complement.
constexpr float kToInteger = 0x1.8p23f;

// x * 2^n for shifted = n + kToInteger, rounded once. kShift: 2^(n + kShift) must be a float or one
// of their neighbours 0 and infinity.
template <int kShift>
[[gnu::always_inline]] inline Quad scale(Quad x, Quad shifted) {
#if defined(__AVX512F__)
  return each(x, shifted - kToInteger, [](Floats a, Floats n) {
    return (Floats)_mm512_maskz_scalef_ps(0xffff, (__m512)a, (__m512)n);
  });
#else
  const Quad power = each(shifted, [](Floats s) {
    return (Floats)(((Words)s << 23) + (uint32_t{127 + kShift} << 23));
  });
  constexpr uint64_t kRest = uint64_t{1} << (kShift < 0 ? -kShift : kShift);
  return x * power * (kShift < 0 ? static_cast<float>(kRest) : 1.f / kRest);
#endif
}

// exp(-(x + rest)), for a `rest` that does not change the nearest multiple of ln 2. The nearest
// one to -x lies within `scale`'s limits. Error 5e-9.
template <int kShift>
[[gnu::always_inline]] inline Quad exp_of_minus(Quad x, Quad rest) {
  const Quad shifted = x * -0x1.715476p0f + kToInteger;
  const Quad n = shifted - kToInteger;
  // x + n ln 2, with ln 2 in two parts. The first has 9 bits, so that its product with n is exact.
  const Quad r = (x + n * 0x1.63p-1f) + (n * -0x1.bd0106p-13f + rest);
  // exp(-r) = 1 - r + r^2 fit(r), |r| <= 0.35.
  const Quad r2 = r * r;
  const Quad fit = (0x1.fffffcp-2f - r * 0x1.55548ap-3f) +
                   r2 * ((0x1.555916p-5f - r * 0x1.123fc6p-7f) + r2 * 0x1.6a1a6cp-10f);
  return scale<kShift>(1.f + (r2 * fit - r), shifted);
}

// 1 + exp(-x), infinite where exp is: from x = -88.73 down.
[[gnu::always_inline]] inline Quad one_plus_exp_of_minus(Quad x) {
  return 1.f + exp_of_minus<-1>(each(each(x, 87.f, smaller), -89.f, larger), 0.f);
}

// erfc(x) as exp(-x^2) times a smooth function of |x|. Error 2e-8; 0 from x = 10.1 on.
[[gnu::always_inline]] inline Quad erfc(Quad x) {
  const Quad magnitude = each(x, [](Floats a) { return (Floats)((Words)a & 0x7fffffff); });
  const Quad s = each(magnitude, 11.f, smaller);
  // The square of 12 bits is exact, and what is left of s^2 is small. s^2 rounded as a whole would
  // put an error of 2^-24 s^2 into the result.
  const Quad upper = each(s, [](Floats a) { return (Floats)((Words)a & 0xfffff000); });
  const Quad gauss = exp_of_minus<60>(upper * upper, (s - upper) * (s + upper));
  // erfc(s) exp(s^2)
  constexpr float kFit[] = {0x1.6e9828p-3f,   -0x1.4e102cp-2f, 0x1.f6ff2p-3f,  -0x1.336fe8p-3f,
                            0x1.258b1ap-4f,   -0x1.8facd2p-6f, 0x1.17c3dcp-8f, 0x1.773fdp-11f,
                            -0x1.37b9c8p-11f, 0x1.e48776p-16f, 0x1.d50e6ap-15f};
  const Quad t = (s - 3.f) / (s + 3.f);
  Quad fit = kFit[10];
  for (int i = 9; i >= 0; --i) fit = fit * t + kFit[i];
  return each(x, gauss * fit, [](Floats a, Floats b) { return a < 0.f ? 2.f - b : b; });
}

template <Activation kActivation>
[[gnu::always_inline]] inline Quad activate(Quad x) {
  if constexpr (kActivation == Activation::kSilu) return x / one_plus_exp_of_minus(x);
  // 1 + erf and 1 + tanh would lose their digits for x far below zero.
  if constexpr (kActivation == Activation::kGelu) return (x * 0.5f) * erfc(x * -0x1.6a09e6p-1f);
  if constexpr (kActivation == Activation::kGeluTanh) {
    const Quad twice_u = (x + (x * x * x) * 0.044715f) * 0x1.988454p0f;
    return x * (1.f / one_plus_exp_of_minus(twice_u));
  }
}

}  // namespace
}  // namespace vllm_ir::kernels::VLLM_IR_CPU_LEVEL
