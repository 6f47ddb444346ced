#include "dtype.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <type_traits>

namespace ulfm {
namespace {

// Integers wrap around as everywhere in array programming; computed unsigned, because signed overflow is undefined (and
// at least as wide as int, because narrower operands would be promoted to it).
template <typename T>
T add(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using Wide = std::common_type_t<unsigned, std::make_unsigned_t<T>>;
    return static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b));
  } else {
    return a + b;
  }
}

template <typename T>
T multiply(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using Wide = std::common_type_t<unsigned, std::make_unsigned_t<T>>;
    return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
  } else {
    return a * b;
  }
}

template <typename T>
void combine_as(Op op, const void* a_bytes, const void* b_bytes, void* out_bytes, std::size_t count) {
  const T* a = static_cast<const T*>(a_bytes);
  const T* b = static_cast<const T*>(b_bytes);
  T* out = static_cast<T*>(out_bytes);
  switch (op) {
    case Op::sum:
      for (std::size_t i = 0; i < count; ++i) out[i] = add(a[i], b[i]);
      return;
    case Op::prod:
      for (std::size_t i = 0; i < count; ++i) out[i] = multiply(a[i], b[i]);
      return;
    case Op::min:
      for (std::size_t i = 0; i < count; ++i) out[i] = std::min(a[i], b[i]);
      return;
    case Op::max:
      for (std::size_t i = 0; i < count; ++i) out[i] = std::max(a[i], b[i]);
      return;
  }
}

float float_of_half(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16U;
  const std::uint32_t exponent = (half >> 10U) & 0x1FU;
  const std::uint32_t mantissa = half & 0x3FFU;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;  // exact; no libm call for every zero
    return sign != 0U ? -magnitude : magnitude;
  }
  const std::uint32_t bits = exponent == 31U ? sign | 0x7F800000U | (mantissa << 13U)
                                             : sign | ((exponent + 112U) << 23U) | (mantissa << 13U);
  float value = 0.0F;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

std::uint16_t half_of_float(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  const auto sign = static_cast<std::uint16_t>((bits >> 16U) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U);   // NaN
  if (magnitude >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);  // rounds to infinity
  if (magnitude < 0x38800000U) {  // subnormal: the float adder does the rounding
    float scaled = 0.0F;
    std::memcpy(&scaled, &magnitude, sizeof scaled);
    scaled += 0.5F;  // aligns the half's last bit with the float's
    std::uint32_t aligned = 0;
    std::memcpy(&aligned, &scaled, sizeof aligned);
    return static_cast<std::uint16_t>(sign | (aligned - 0x3F000000U));
  }
  const std::uint32_t odd = (magnitude >> 13U) & 1U;
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000U + 0xFFFU + odd) >> 13U));
}

float float_of_bfloat(std::uint16_t value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16U;
  float result = 0.0F;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

std::uint16_t bfloat_of_float(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);  // NaN
  const std::uint32_t odd = (bits >> 16U) & 1U;
  return static_cast<std::uint16_t>((bits + 0x7FFFU + odd) >> 16U);
}

}  // namespace

std::size_t size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
    case DType::i16:
      return 2;
    case DType::i8:
    case DType::u8:
      return 1;
  }
  return 0;
}

const char* name_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f64:
      return "float64";
    case DType::f32:
      return "float32";
    case DType::f16:
      return "float16";
    case DType::bf16:
      return "bfloat16";
    case DType::i64:
      return "int64";
    case DType::i32:
      return "int32";
    case DType::i16:
      return "int16";
    case DType::i8:
      return "int8";
    case DType::u8:
      return "uint8";
  }
  return "?";
}

DType accumulator_of(DType dtype) noexcept {
  return dtype == DType::f16 || dtype == DType::bf16 ? DType::f32 : dtype;
}

void combine(Op op, DType dtype, const void* a, const void* b, void* out, std::size_t count) {
  switch (dtype) {
    case DType::f64:
      return combine_as<double>(op, a, b, out, count);
    case DType::f32:
      return combine_as<float>(op, a, b, out, count);
    case DType::i64:
      return combine_as<std::int64_t>(op, a, b, out, count);
    case DType::i32:
      return combine_as<std::int32_t>(op, a, b, out, count);
    case DType::i16:
      return combine_as<std::int16_t>(op, a, b, out, count);
    case DType::i8:
      return combine_as<std::int8_t>(op, a, b, out, count);
    case DType::u8:
      return combine_as<std::uint8_t>(op, a, b, out, count);
    case DType::f16:
    case DType::bf16:
      throw std::logic_error("16-bit floats are combined in float32");
  }
}

void widen(DType from, const void* in, float* out, std::size_t count) {
  const auto* words = static_cast<const std::uint16_t*>(in);
  if (from == DType::bf16) {
    for (std::size_t i = 0; i < count; ++i) out[i] = float_of_bfloat(words[i]);
  } else {
    for (std::size_t i = 0; i < count; ++i) out[i] = float_of_half(words[i]);
  }
}

void narrow(DType to, const float* in, void* out, std::size_t count) {
  auto* words = static_cast<std::uint16_t*>(out);
  if (to == DType::bf16) {
    for (std::size_t i = 0; i < count; ++i) words[i] = bfloat_of_float(in[i]);
  } else {
    for (std::size_t i = 0; i < count; ++i) words[i] = half_of_float(in[i]);
  }
}

}  // namespace ulfm
