// Stored rows of every quant type as float vectors: bytes to 16 weights at a time, with AVX-512.
//
// A type's `each` calls f(i, w) for the i-th 16 weights of a block, in the layout that executor/quants/unpack.py
// describes. Codes of up to 4 bits are looked up in a table that already holds scale and minimum, as a permutation of
// a register looks at the lowest 4 bits of an index alone. Numbers are what dequantisation to float32 gives, but for
// the last bit of types with a minimum.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace hprof {

using Bytes = const uint8_t*;

inline float half_at(Bytes p) {
    uint16_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return _cvtsh_ss(bits);
}

// A float16 that scales a block, in all lanes and 2^112 times too small: its bits as those of a float, without the
// conversion, which would be a third of the work on a block of 32. Tables make up for it.
constexpr float kScaleUp = 0x1p112f;

inline __m512 small_half_at(Bytes p) {
    int16_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int32_t>(static_cast<uint32_t>(bits) << 13 & 0x8fffe000u)));
}

inline __m512 whole_half_at(Bytes p) { return _mm512_mul_ps(small_half_at(p), _mm512_set1_ps(kScaleUp)); }

inline uint32_t word_at(Bytes p) {
    uint32_t word;
    std::memcpy(&word, p, sizeof word);
    return word;
}

inline __m128i bytes_at(Bytes p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline __m512i indices_at(Bytes p) { return _mm512_cvtepu8_epi32(bytes_at(p)); }

// 0 .. 15, and what codebooks and narrower codes make of them.
alignas(64) constexpr float kCodes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
alignas(64) constexpr float kLowTwoBits[16] = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3};
alignas(64) constexpr float kIq4Nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
alignas(64) constexpr float kMxfp4Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// (code + offset) * scale, for all 16 codes.
inline __m512 table(const float* codes, float scale, float offset = 0) {
    return _mm512_mul_ps(_mm512_add_ps(_mm512_load_ps(codes), _mm512_set1_ps(offset)), _mm512_set1_ps(scale));
}

// The same with a scale from `small_half_at`.
inline __m512 table(const float* codes, __m512 small_scale, float offset = 0) {
    const __m512 values = _mm512_add_ps(_mm512_load_ps(codes), _mm512_set1_ps(offset));
    return _mm512_mul_ps(_mm512_mul_ps(values, _mm512_set1_ps(kScaleUp)), small_scale);
}

// code * scale + zero.
inline __m512 table_with_zero(const float* codes, __m512 scale, __m512 zero) {
    return _mm512_fmadd_ps(_mm512_load_ps(codes), scale, zero);
}

inline __m512 table_with_zero(const float* codes, float scale, float zero) {
    return table_with_zero(codes, _mm512_set1_ps(scale), _mm512_set1_ps(zero));
}

inline __m512 low(__m512i codes, __m512 table) { return _mm512_permutexvar_ps(codes, table); }
inline __m512 high(__m512i codes, __m512 table) { return _mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4), table); }

inline __m512 plus_where(__mmask16 where, __m512 numbers, __m512 added) {
    return _mm512_mask_add_ps(numbers, where, numbers, added);
}

inline __m512 plus_where(__mmask16 where, __m512 numbers, float added) {
    return plus_where(where, numbers, _mm512_set1_ps(added));
}

// 32 weights whose low nibbles are the first 16.
template <class F>
inline void nibbles(Bytes q, __m512 table, int first, F f) {
    const __m512i codes = indices_at(q);
    f(first, low(codes, table));
    f(first + 1, high(codes, table));
}

// The same with a fifth bit each, worth 16 steps of `scale`.
template <class F>
inline void five_bits(Bytes q, uint32_t fifth, __m512 table, __m512 scale, F f) {
    const __m512i codes = indices_at(q);
    const __m512 added = _mm512_mul_ps(scale, _mm512_set1_ps(16));
    f(0, plus_where(static_cast<__mmask16>(fifth), low(codes, table), added));
    f(1, plus_where(static_cast<__mmask16>(fifth >> 16), high(codes, table), added));
}

// Eight scales and eight minima of 6 bits from 12 bytes (Q4_K, Q5_K), times d and -d_min.
struct ScalesAndZeros {
    alignas(32) float scale[8];
    alignas(32) float zero[8];

    ScalesAndZeros(Bytes packed, float d, float d_min) {
        const uint32_t a = word_at(packed), b = word_at(packed + 4), c = word_at(packed + 8);
        store(scale, a & 0x3f3f3f3f, (c & 0x0f0f0f0f) | ((a >> 2) & 0x30303030), d);
        store(zero, b & 0x3f3f3f3f, ((c >> 4) & 0x0f0f0f0f) | ((b >> 2) & 0x30303030), -d_min);
    }

   private:
    static void store(float* to, uint32_t first, uint32_t second, float factor) {
        const __m128i codes = _mm_set_epi32(0, 0, static_cast<int>(second), static_cast<int>(first));
        _mm256_store_ps(to, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(codes)), _mm256_set1_ps(factor)));
    }
};

struct F32 {
    static constexpr int kWeights = 16, kBytes = 64;
    template <class F>
    static void each(Bytes b, F f) {
        f(0, _mm512_loadu_ps(b));
    }
};

struct F16 {
    static constexpr int kWeights = 16, kBytes = 32;
    template <class F>
    static void each(Bytes b, F f) {
        f(0, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(b))));
    }
};

struct Bf16 {
    static constexpr int kWeights = 16, kBytes = 32;
    template <class F>
    static void each(Bytes b, F f) {
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b));
        f(0, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16)));
    }
};

struct Q8_0 {
    static constexpr int kWeights = 32, kBytes = 34;
    template <class F>
    static void each(Bytes b, F f) {
        const __m512 d = whole_half_at(b);
        for (int i = 0; i < 2; ++i) {
            f(i, _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes_at(b + 2 + 16 * i))), d));
        }
    }
};

struct Q4_0 {
    static constexpr int kWeights = 32, kBytes = 18;
    template <class F>
    static void each(Bytes b, F f) {
        nibbles(b + 2, table(kCodes, small_half_at(b), -8), 0, f);
    }
};

struct Q4_1 {
    static constexpr int kWeights = 32, kBytes = 20;
    template <class F>
    static void each(Bytes b, F f) {
        nibbles(b + 4, table_with_zero(kCodes, whole_half_at(b), whole_half_at(b + 2)), 0, f);
    }
};

struct Q5_0 {
    static constexpr int kWeights = 32, kBytes = 22;
    template <class F>
    static void each(Bytes b, F f) {
        five_bits(b + 6, word_at(b + 2), table(kCodes, small_half_at(b), -16), whole_half_at(b), f);
    }
};

struct Q5_1 {
    static constexpr int kWeights = 32, kBytes = 24;
    template <class F>
    static void each(Bytes b, F f) {
        const __m512 d = whole_half_at(b);
        five_bits(b + 8, word_at(b + 4), table_with_zero(kCodes, d, whole_half_at(b + 2)), d, f);
    }
};

struct Iq4Nl {
    static constexpr int kWeights = 32, kBytes = 18;
    template <class F>
    static void each(Bytes b, F f) {
        nibbles(b + 2, table(kIq4Nl, small_half_at(b)), 0, f);
    }
};

struct Mxfp4 {
    static constexpr int kWeights = 32, kBytes = 17;
    template <class F>
    static void each(Bytes b, F f) {
        // 2 ** (e - 128), from its bits; the two smallest are subnormal
        const uint32_t e = b[0], bits = e < 2 ? (e + 1) << 21 : (e - 1) << 23;
        float scale;
        std::memcpy(&scale, &bits, sizeof scale);
        nibbles(b + 1, table(kMxfp4Doubled, scale), 0, f);
    }
};

struct Iq4Xs {
    static constexpr int kWeights = 256, kBytes = 136;
    template <class F>
    static void each(Bytes b, F f) {
        const float d = half_at(b);
        const uint32_t upper = b[2] | b[3] << 8;
        for (int j = 0; j < 8; ++j) {
            const int scale = ((b[4 + j / 2] >> (4 * (j % 2))) & 15) | ((upper >> (2 * j)) & 3) << 4;
            nibbles(b + 8 + 16 * j, table(kIq4Nl, d * static_cast<float>(scale - 32)), 2 * j, f);
        }
    }
};

struct Q4K {
    static constexpr int kWeights = 256, kBytes = 144;
    template <class F>
    static void each(Bytes b, F f) {
        const ScalesAndZeros s(b + 4, half_at(b), half_at(b + 2));
        for (int j = 0; j < 8; j += 2) {
            const Bytes q = b + 16 + 16 * j;
            const __m512 first = table_with_zero(kCodes, s.scale[j], s.zero[j]);
            const __m512 second = table_with_zero(kCodes, s.scale[j + 1], s.zero[j + 1]);
            const __m512i left = indices_at(q), right = indices_at(q + 16);
            f(2 * j, low(left, first));
            f(2 * j + 1, low(right, first));
            f(2 * j + 2, high(left, second));
            f(2 * j + 3, high(right, second));
        }
    }
};

struct Q5K {
    static constexpr int kWeights = 256, kBytes = 176;
    template <class F>
    static void each(Bytes b, F f) {
        const ScalesAndZeros s(b + 4, half_at(b), half_at(b + 2));
        const __m512i fifth[2] = {indices_at(b + 16), indices_at(b + 32)};
        for (int j = 0; j < 8; j += 2) {
            const __m512 first = table_with_zero(kCodes, s.scale[j], s.zero[j]);
            const __m512 second = table_with_zero(kCodes, s.scale[j + 1], s.zero[j + 1]);
            const __m512i bit = _mm512_set1_epi32(1 << j), next = _mm512_set1_epi32(2 << j);
            for (int i = 0; i < 2; ++i) {
                const __m512i codes = indices_at(b + 48 + 16 * j + 16 * i);
                const __mmask16 of_low = _mm512_test_epi32_mask(fifth[i], bit);
                const __mmask16 of_high = _mm512_test_epi32_mask(fifth[i], next);
                f(2 * j + i, plus_where(of_low, low(codes, first), 16 * s.scale[j]));
                f(2 * j + 2 + i, plus_where(of_high, high(codes, second), 16 * s.scale[j + 1]));
            }
        }
    }
};

struct Q6K {
    static constexpr int kWeights = 256, kBytes = 210;
    template <class F>
    static void each(Bytes b, F f) {
        const float d = half_at(b + 208);
        const __m512i four = _mm512_set1_epi32(15), two = _mm512_set1_epi32(0x30);
        for (int half = 0; half < 2; ++half) {
            for (int i = 0; i < 2; ++i) {
                const __m512i upper = _mm512_slli_epi32(indices_at(b + 128 + 32 * half + 16 * i), 4);
                for (int plane = 0; plane < 4; ++plane) {
                    __m512i lower = indices_at(b + 64 * half + 32 * (plane & 1) + 16 * i);
                    if (plane > 1) lower = _mm512_srli_epi32(lower, 4);
                    const __m512i top = _mm512_and_si512(_mm512_srli_epi32(upper, 2 * plane), two);
                    const __m512 code = _mm512_cvtepi32_ps(_mm512_or_si512(_mm512_and_si512(lower, four), top));
                    const int at = 8 * half + 2 * plane + i;
                    const float scale = d * static_cast<float>(static_cast<int8_t>(b[192 + at]));
                    f(at, _mm512_fmadd_ps(code, _mm512_set1_ps(scale), _mm512_set1_ps(-32 * scale)));
                }
            }
        }
    }
};

struct Q2K {
    static constexpr int kWeights = 256, kBytes = 84;
    template <class F>
    static void each(Bytes b, F f) {
        const float d = half_at(b + 80), d_min = half_at(b + 82);
        for (int half = 0; half < 2; ++half) {
            for (int i = 0; i < 2; ++i) {
                const __m512i codes = indices_at(b + 16 + 32 * half + 16 * i);
                for (int plane = 0; plane < 4; ++plane) {
                    const int at = 8 * half + 2 * plane + i;
                    const float scale = d * static_cast<float>(b[at] & 15);
                    const float zero = -d_min * static_cast<float>(b[at] >> 4);
                    const __m512 values = table_with_zero(kLowTwoBits, scale, zero);
                    f(at, low(_mm512_srli_epi32(codes, 2 * plane), values));
                }
            }
        }
    }
};

struct Q3K {
    static constexpr int kWeights = 256, kBytes = 110;
    template <class F>
    static void each(Bytes b, F f) {
        const float d = half_at(b + 108);
        const Bytes packed = b + 96;
        for (int half = 0; half < 2; ++half) {
            for (int i = 0; i < 2; ++i) {
                const __m512i third = indices_at(b + 16 * i), codes = indices_at(b + 32 + 32 * half + 16 * i);
                for (int plane = 0; plane < 4; ++plane) {
                    const int at = 8 * half + 2 * plane + i;
                    const int lower = (packed[at % 8] >> (at < 8 ? 0 : 4)) & 15;
                    const int upper = (packed[8 + at % 4] >> (2 * (at / 4))) & 3;
                    const float scale = d * static_cast<float>((lower | upper << 4) - 32);
                    const __m512 values = table(kLowTwoBits, scale, -4);
                    const __mmask16 set = _mm512_test_epi32_mask(third, _mm512_set1_epi32(1 << (4 * half + plane)));
                    f(at, plus_where(set, low(_mm512_srli_epi32(codes, 2 * plane), values), 4 * scale));
                }
            }
        }
    }
};

}  // namespace hprof
