// Element types and the sums over them.
#pragma once

#include <cstddef>
#include <string>

namespace ulfm {

enum class DType : int { f64, f32, f16, bf16, i64, i32, i16, i8, u8 };
enum class Op : int { sum, min, max, prod };

std::size_t size_of(DType dtype) noexcept;
const char* name_of(DType dtype) noexcept;

// The type partial results travel in: float32 for the 16-bit floats, so that a sum over many ranks is rounded once.
DType accumulator_of(DType dtype) noexcept;

// out[i] = op(a[i], b[i]); out may be a or b. Only accumulator types (no 16-bit floats).
void combine(Op op, DType dtype, const void* a, const void* b, void* out, std::size_t count);

// 16-bit float <-> float32; round to nearest even on the way down.
void widen(DType from, const void* in, float* out, std::size_t count);
void narrow(DType to, const float* in, void* out, std::size_t count);

}  // namespace ulfm
