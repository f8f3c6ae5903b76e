// Activations in whole numbers, in the order in which stored codes meet them.
//
// An activation becomes 16 bits of its block's largest, a byte at a time: the upper and the lower one are multiplied by
// themselves, in sums that are exact, and a block's sum is scaled in float. A step of such a number is about 2^-14 of the
// block's largest or less, and a power of two, so that bf16 activations down to 2^-6 of it lose nothing.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "rows.hpp"

namespace hprof {

// Where 16 numbers that follow each other stand, as quarters of two vectors of 64.
enum class Order {
    kHalves,  // four blocks side by side, their first halves and their second ones: low nibbles of 16 bytes, high ones
    kPairs,   // blocks 0 and 2, 1 and 3: low nibbles of 32 bytes, high ones
    kAsTheyAre,
};

// 128 numbers: four blocks of 32, each with a step of its own.
struct alignas(64) Integers {
    static constexpr int kNumbers = 128, kOfBlock = 32, kOfQuarter = 16, kLanesOfQuarter = 4;
    int8_t upper[2][64], lower[2][64];
    float step[2][16];    // of each lane of four numbers
    int32_t zero[2][16];  // what codes that stand too high add to each lane's sum, negated; where they do
    float sums[8];        // of 16 numbers each, as they follow each other; where they do not

    // Take in a block's numbers, which are one behind the other, for codes that stand `offset` too high.
    template <Order order, int offset>
    void set(int block, const float* x) {
        const __m512 quarters[2] = {_mm512_loadu_ps(x), _mm512_loadu_ps(x + kOfQuarter)};
        const __m512 sizes = _mm512_max_ps(_mm512_abs_ps(quarters[0]), _mm512_abs_ps(quarters[1]));
        const float largest = _mm512_reduce_max_ps(sizes);
        const bool is_finite = all_finite(quarters[0], quarters[1]);
        constexpr float kMost = 32639;  // 127 times 256, and the most that the lower byte adds
        int exponent;
        const float mantissa = std::frexp(largest, &exponent);  // largest = mantissa * 2^exponent, mantissa < 1
        exponent = std::max(exponent - (mantissa * 0x1p15f > kMost ? 14 : 15), -113);
        const float a_step = is_finite ? std::ldexp(1.f, exponent) : NAN;
        const __m512 per_step = _mm512_set1_ps(is_finite ? std::ldexp(1.f, -exponent) : 0);
        __m128i added[2];
        for (int i = 0; i < 2; ++i) {
            const int number = 2 * block + i, v = vector_of(order, number), at = quarter_of(order, number);
            const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(quarters[i], per_step));
            const __m512i above = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8);
            const __m512i below = _mm512_sub_epi32(whole, _mm512_slli_epi32(above, 8));
            _mm_store_si128(reinterpret_cast<__m128i*>(upper[v] + kOfQuarter * at), _mm512_cvtepi32_epi8(above));
            _mm_store_si128(reinterpret_cast<__m128i*>(lower[v] + kOfQuarter * at), _mm512_cvtepi32_epi8(below));
            _mm_store_ps(step[v] + kLanesOfQuarter * at, _mm_set1_ps(a_step));
            if (offset) {
                added[i] = of_lanes(whole);
            } else {
                sums[number] = a_step * static_cast<float>(_mm512_reduce_add_epi32(whole));
            }
        }
        if (!offset) return;
        const bool are_one = order == Order::kHalves;  // lanes of both vectors are added up before they are scaled
        if (are_one) added[0] = _mm_add_epi32(added[0], added[1]);
        for (int i = 0; i < (are_one ? 1 : 2); ++i) {
            const int number = 2 * block + i, at = kLanesOfQuarter * quarter_of(order, number);
            int32_t* lanes = zero[vector_of(order, number)] + at;
            _mm_store_si128(reinterpret_cast<__m128i*>(lanes), _mm_mullo_epi32(added[i], _mm_set1_epi32(-offset)));
        }
    }

   private:
    static constexpr int vector_of(Order order, int number) {
        return order == Order::kHalves ? number % 2 : order == Order::kPairs ? number / 2 % 2 : number / 4;
    }

    static constexpr int quarter_of(Order order, int number) {
        return order == Order::kHalves ? number / 2 : order == Order::kPairs ? number / 4 * 2 + number % 2 : number % 4;
    }

    // Sums of four, of 16 numbers of up to 16 bits.
    static __m128i of_lanes(__m512i numbers) {
        const __m256i twos = _mm256_madd_epi16(_mm512_cvtepi32_epi16(numbers), _mm256_set1_epi16(1));
        const __m256i fours = _mm256_hadd_epi32(twos, twos);
        return _mm256_castsi256_si128(_mm256_permute4x64_epi64(fours, 0x08));
    }

    static bool all_finite(__m512 a, __m512 b) {
        constexpr int kNotFinite = 0x01 | 0x08 | 0x10 | 0x80;  // of vfpclass: either NaN, either infinity
        return (_mm512_fpclass_ps_mask(a, kNotFinite) | _mm512_fpclass_ps_mask(b, kNotFinite)) == 0;
    }
};

// Of so many numbers, what makes whole `Integers`.
inline int n_integers(int n) { return n / Integers::kNumbers; }

}  // namespace hprof
