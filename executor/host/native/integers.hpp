// Products of Q4_0 rows in whole numbers: half the instructions of products in float, so that memory is the limit.
//
// An activation becomes 16 bits of its block's largest, a byte at a time: the upper and the lower one are multiplied by
// themselves, in sums that are exact, and a block's sum is scaled in float. A step of such a number is at most 2^-13 of
// the block's largest, and a power of two, so that bf16 activations down to 2^-6 of it lose nothing.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "rows.hpp"

namespace hprof {

// 128 numbers as the product wants them: four blocks side by side, their first halves and their second ones.
struct alignas(64) Integers {
    static constexpr int kNumbers = 128, kBlocks = 4, kOfBlock = kNumbers / kBlocks;
    int8_t upper[2][64], lower[2][64];
    int32_t zero[16];  // what codes that stand 8 too high add to each lane's sum, negated
    float step[16];

    // Take in a block's numbers, which are one behind the other.
    void set(int block, const float* x) {
        constexpr int kHalf = kOfBlock / 2, kLanes = 4;
        const __m512 halves[2] = {_mm512_loadu_ps(x), _mm512_loadu_ps(x + kHalf)};
        const float largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(halves[0]), _mm512_abs_ps(halves[1])));
        const bool is_finite = all_finite(halves[0], halves[1]);
        int exponent;
        std::frexp(largest, &exponent);  // largest < 2^exponent
        exponent = std::max(exponent - 14, -113);
        const float a_step = is_finite ? std::ldexp(1.f, exponent) : NAN;
        const __m512 per_step = _mm512_set1_ps(is_finite ? std::ldexp(1.f, -exponent) : 0);
        __m512i sums = _mm512_setzero_si512();
        for (int half = 0; half < 2; ++half) {
            const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(halves[half], per_step));
            const __m512i above = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8);
            const __m512i below = _mm512_sub_epi32(whole, _mm512_slli_epi32(above, 8));
            _mm_store_si128(reinterpret_cast<__m128i*>(upper[half] + kHalf * block), _mm512_cvtepi32_epi8(above));
            _mm_store_si128(reinterpret_cast<__m128i*>(lower[half] + kHalf * block), _mm512_cvtepi32_epi8(below));
            sums = _mm512_add_epi32(sums, whole);
        }
        alignas(64) int32_t each[16];
        _mm512_store_si512(each, sums);
        for (int lane = 0; lane < kLanes; ++lane) {
            const int32_t* of_lane = each + kLanes * lane;
            zero[kLanes * block + lane] = -8 * (of_lane[0] + of_lane[1] + of_lane[2] + of_lane[3]);
            step[kLanes * block + lane] = a_step;
        }
    }

   private:
    static bool all_finite(__m512 a, __m512 b) {
        constexpr int kNotFinite = 0x01 | 0x08 | 0x10 | 0x80;  // of vfpclass: either NaN, either infinity
        return (_mm512_fpclass_ps_mask(a, kNotFinite) | _mm512_fpclass_ps_mask(b, kNotFinite)) == 0;
    }
};

inline int n_integers(int n) { return n / Integers::kNumbers; }

// Of a row's first numbers, as many as make whole `Integers`.
inline void row_to_integers(const float* x, int n, Integers* to) {
    for (int block = 0; block < n_integers(n) * Integers::kBlocks; ++block) {
        to[block / Integers::kBlocks].set(block % Integers::kBlocks, x + block * Integers::kOfBlock);
    }
}

inline bool has_integer_products() { return __builtin_cpu_supports("avx512vnni"); }

// Blocks that make no whole `Integers`, from column `at` on, in float.
inline __m512 few_times(Bytes block, const float* x, int at, int n_cols) {
    __m512 sum = _mm512_setzero_ps();
    for (; at < n_cols; at += Q4_0::kWeights, block += Q4_0::kBytes) {
        Q4_0::each(block, [&](int i, __m512 w) { sum = _mm512_fmadd_ps(w, _mm512_loadu_ps(x + at + kLanes * i), sum); });
    }
    return sum;
}

// Rows of Q4_0 times x.
__attribute__((target("avx512vnni"))) inline void integer_rows_times(Bytes row, int64_t row_bytes, int n_rows,
                                                                     const Integers* whole, const float* x, int n_cols,
                                                                     Stretch stretch, float* products) {
    constexpr int kBytes = Q4_0::kBytes, kStepBytes = Integers::kBlocks * kBytes;
    // the scale of block i, in each of the four lanes that its sums have
    const __m512i scales = _mm512_set_epi16(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 27, 27, 27, 27, 18, 18, 18, 18,
                                            9, 9, 9, 9, 0, 0, 0, 0);
    const __m512i nibble = _mm512_set1_epi8(15);
    const int n_steps = n_integers(n_cols);
    for (int r = 0; r < n_rows; ++r, row += row_bytes) {
        __m512 sums = _mm512_setzero_ps();
        Bytes blocks = row;
        for (int i = 0; i < n_steps; ++i, blocks += kStepBytes) {
            stretch.foresee(blocks);
            stretch.foresee(blocks + kLine);
            const Integers& w = whole[i];
            __m512i codes = _mm512_castsi128_si512(bytes_at(blocks + 2));
            codes = _mm512_inserti32x4(codes, bytes_at(blocks + kBytes + 2), 1);
            codes = _mm512_inserti32x4(codes, bytes_at(blocks + 2 * kBytes + 2), 2);
            codes = _mm512_inserti32x4(codes, bytes_at(blocks + 3 * kBytes + 2), 3);
            const __m512i first = _mm512_and_si512(codes, nibble);
            const __m512i second = _mm512_and_si512(_mm512_srli_epi16(codes, 4), nibble);
            __m512i upper = _mm512_dpbusd_epi32(_mm512_setzero_si512(), first, _mm512_load_si512(w.upper[0]));
            __m512i lower = _mm512_dpbusd_epi32(_mm512_load_si512(w.zero), first, _mm512_load_si512(w.lower[0]));
            upper = _mm512_dpbusd_epi32(upper, second, _mm512_load_si512(w.upper[1]));
            lower = _mm512_dpbusd_epi32(lower, second, _mm512_load_si512(w.lower[1]));
            const __m512 sum = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(upper, 8), lower));
            const __m512i halves = _mm512_permutexvar_epi16(scales, _mm512_loadu_si512(blocks));
            const __m512 scale = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
            sums = _mm512_fmadd_ps(sum, _mm512_mul_ps(scale, _mm512_load_ps(w.step)), sums);
        }
        products[r] = _mm512_reduce_add_ps(_mm512_add_ps(sums, few_times(blocks, x, n_steps * Integers::kNumbers, n_cols)));
    }
}

}  // namespace hprof
