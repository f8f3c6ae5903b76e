// Products of stored rows in whole numbers: about half the instructions of products in float, so that memory is the limit.
//
// A type's `add` takes `kIntegers` times 128 weights, whose codes it multiplies as unsigned bytes by the two signed bytes
// of each activation (AVX-512 VNNI). What codes stand too high is in `Integers::zero`; minima meet `Integers::sums`.
// Types that users have and that this serves: Q4_K and Q6_K (together Q4_K_M), Q8_0, Q5_K, Q4_0, Q4_1, MXFP4, IQ4_NL.
#pragma once

#include "integers.hpp"

#define HPROF_VNNI __attribute__((target("avx512vnni")))

namespace hprof {

// Four sums, so that one product need not wait for the last.
struct Sums {
    __m512 of[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    void add(int i, __m512 a, __m512 b) { of[i] = _mm512_fmadd_ps(a, b, of[i]); }

    // The first n, which are those that a type uses.
    template <int n>
    __m512 all() const {
        if (n == 1) return of[0];
        const __m512 two = _mm512_add_ps(of[0], of[1]);
        return n == 2 ? two : _mm512_add_ps(two, _mm512_add_ps(of[2], of[3]));
    }
};

inline __m512i nibble_mask() { return _mm512_set1_epi8(15); }
inline __m512i low_nibbles(__m512i bytes) { return _mm512_and_si512(bytes, nibble_mask()); }
inline __m512i high_nibbles(__m512i bytes) { return _mm512_and_si512(_mm512_srli_epi16(bytes, 4), nibble_mask()); }
inline __m512i both_halves(__m256i half) { return _mm512_broadcast_i64x4(half); }
inline __m512i halves(__m256i first, __m256i second) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
}
inline __m256i half_vector_at(Bytes p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// 16 bytes of each of four blocks.
template <int kBytes>
inline __m512i of_four_blocks(Bytes p) {
    const __m512i first = _mm512_inserti32x4(_mm512_castsi128_si512(bytes_at(p)), bytes_at(p + kBytes), 1);
    return _mm512_inserti32x4(_mm512_inserti32x4(first, bytes_at(p + 2 * kBytes), 2), bytes_at(p + 3 * kBytes), 3);
}

// Float16 numbers of a vector's 32, picked by 16 places.
inline __m512 halves_at(Bytes p, __m256i places) {
    const __m512i picked = _mm512_permutexvar_epi16(_mm512_castsi256_si512(places), _mm512_loadu_si512(p));
    return _mm512_cvtph_ps(_mm512_castsi512_si256(picked));
}

// Each of four 16-bit places for the four lanes of a quarter.
inline __m256i in_quarters(int a, int b, int c, int d) {
    const auto four = [](int place) { return 0x0001000100010001ll * place; };
    return _mm256_set_epi64x(four(d), four(c), four(b), four(a));
}

// Codes times vector v, lane by lane of four numbers; codes stand too high where `has_offset`.
template <bool has_offset>
HPROF_VNNI inline __m512 codes_times(__m512i codes, const Integers& w, int v) {
    const __m512i upper = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes, _mm512_load_si512(w.upper[v]));
    const __m512i above = _mm512_slli_epi32(upper, 8);
    const __m512i lower = _mm512_load_si512(w.lower[v]);
    if (!has_offset) return _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(above, codes, lower));
    const __m512i below = _mm512_dpbusd_epi32(_mm512_load_si512(w.zero[v]), codes, lower);  // does not wait for the other
    return _mm512_cvtepi32_ps(_mm512_add_epi32(above, below));
}

// The same of blocks whose halves are the two vectors.
template <bool has_offset>
HPROF_VNNI inline __m512 halves_times(__m512i first, __m512i second, const Integers& w) {
    const __m512i zero = has_offset ? _mm512_load_si512(w.zero[0]) : _mm512_setzero_si512();
    __m512i upper = _mm512_dpbusd_epi32(_mm512_setzero_si512(), first, _mm512_load_si512(w.upper[0]));
    __m512i lower = _mm512_dpbusd_epi32(zero, first, _mm512_load_si512(w.lower[0]));
    upper = _mm512_dpbusd_epi32(upper, second, _mm512_load_si512(w.upper[1]));
    lower = _mm512_dpbusd_epi32(lower, second, _mm512_load_si512(w.lower[1]));
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(upper, 8), lower));
}

struct IntegerQ4_0 {
    using Floats = Q4_0;
    static constexpr Order kOrder = Order::kHalves;
    static constexpr int kOffset = 8, kIntegers = 1, kSums = 1;

    HPROF_VNNI static void add(Bytes b, const Integers* w, Sums& sums) {
        const __m512i codes = of_four_blocks<Floats::kBytes>(b + 2);
        const __m512 products = halves_times<true>(low_nibbles(codes), high_nibbles(codes), *w);
        const __m512 scales = halves_at(b, in_quarters(0, 9, 18, 27));
        sums.add(0, products, _mm512_mul_ps(scales, _mm512_load_ps(w->step[0])));
    }
};

struct IntegerQ4_1 {
    using Floats = Q4_1;
    static constexpr Order kOrder = Order::kHalves;
    static constexpr int kOffset = 0, kIntegers = 1, kSums = 2;

    HPROF_VNNI static void add(Bytes b, const Integers* w, Sums& sums) {
        const __m512i codes = of_four_blocks<Floats::kBytes>(b + 4);
        const __m512 products = halves_times<false>(low_nibbles(codes), high_nibbles(codes), *w);
        const __m512 scales = halves_at(b, in_quarters(0, 10, 20, 30));
        sums.add(0, products, _mm512_mul_ps(scales, _mm512_load_ps(w->step[0])));
        const __m256i minima = _mm256_set_epi16(0, 0, 0, 0, 0, 0, 0, 0, 31, 31, 21, 21, 11, 11, 1, 1);
        sums.add(1, halves_at(b, minima), _mm512_maskz_loadu_ps(0xff, w->sums));
    }
};

// Codes of 4 bits that stand for the numbers of a codebook, here so much too high that all are positive.
template <int offset>
inline __m512i codebook(const float* numbers) {
    alignas(16) int8_t bytes[16];
    for (int i = 0; i < 16; ++i) bytes[i] = static_cast<int8_t>(static_cast<int>(numbers[i]) + offset);
    return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
}

// Products of the numbers that four blocks' codes stand for.
template <int offset>
HPROF_VNNI inline __m512 looked_up_times(__m512i codes, const float* numbers, const Integers& w) {
    const __m512i book = codebook<offset>(numbers);
    return halves_times<true>(_mm512_shuffle_epi8(book, low_nibbles(codes)), _mm512_shuffle_epi8(book, high_nibbles(codes)), w);
}

struct IntegerIq4Nl {
    using Floats = Iq4Nl;
    static constexpr Order kOrder = Order::kHalves;
    static constexpr int kOffset = 128, kIntegers = 1, kSums = 1;

    HPROF_VNNI static void add(Bytes b, const Integers* w, Sums& sums) {
        const __m512 products = looked_up_times<kOffset>(of_four_blocks<Floats::kBytes>(b + 2), kIq4Nl, *w);
        const __m512 scales = halves_at(b, in_quarters(0, 9, 18, 27));
        sums.add(0, products, _mm512_mul_ps(scales, _mm512_load_ps(w->step[0])));
    }
};

struct IntegerMxfp4 {
    using Floats = Mxfp4;
    static constexpr Order kOrder = Order::kHalves;
    static constexpr int kOffset = 12, kIntegers = 1, kSums = 1;

    HPROF_VNNI static void add(Bytes b, const Integers* w, Sums& sums) {
        constexpr int kBytes = Floats::kBytes;
        const __m512 products = looked_up_times<kOffset>(of_four_blocks<kBytes>(b + 1), kMxfp4Doubled, *w);
        // 2 ** (e - 128), from its bits; the two smallest are subnormal
        const __m128i e = _mm_set_epi32(b[3 * kBytes], b[2 * kBytes], b[kBytes], b[0]), one = _mm_set1_epi32(1);
        const __m128i usual = _mm_slli_epi32(_mm_sub_epi32(e, one), 23);
        const __m128i bits = _mm_mask_slli_epi32(usual, _mm_cmplt_epi32_mask(e, _mm_set1_epi32(2)), _mm_add_epi32(e, one), 21);
        const __m512i lanes = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
        const __m512 scales = _mm512_permutexvar_ps(lanes, _mm512_castsi512_ps(_mm512_castsi128_si512(bits)));
        sums.add(0, products, _mm512_mul_ps(scales, _mm512_load_ps(w->step[0])));
    }
};

struct IntegerQ8_0 {
    using Floats = Q8_0;
    static constexpr Order kOrder = Order::kAsTheyAre;
    static constexpr int kOffset = 128, kIntegers = 1, kSums = 2;

    HPROF_VNNI static void add(Bytes b, const Integers* w, Sums& sums) {
        constexpr int kBytes = Floats::kBytes;
        const __m512i top = _mm512_set1_epi8(static_cast<char>(0x80));
        for (int v = 0; v < 2; ++v, b += 2 * kBytes) {
            const __m512i codes = _mm512_xor_si512(halves(half_vector_at(b + 2), half_vector_at(b + 2 + kBytes)), top);
            const __m512 scales = halves_at(b, in_quarters(0, 0, kBytes / 2, kBytes / 2));
            sums.add(v, codes_times<true>(codes, *w, v), _mm512_mul_ps(scales, _mm512_load_ps(w->step[v])));
        }
    }
};

// Lanes 0 to 7: the scales of a block of Q4_K or Q5_K; 8 to 15: its minima, negated.
inline __m512 scales_and_zeros(Bytes b) {
    const uint32_t x = word_at(b + 4), y = word_at(b + 8), z = word_at(b + 12);
    const uint32_t scales = (z & 0x0f0f0f0f) | ((x >> 2) & 0x30303030), zeros = ((z >> 4) & 0x0f0f0f0f) | ((y >> 2) & 0x30303030);
    const __m128i codes = _mm_set_epi64x(static_cast<int64_t>(uint64_t{zeros} << 32 | (y & 0x3f3f3f3f)),
                                         static_cast<int64_t>(uint64_t{scales} << 32 | (x & 0x3f3f3f3f)));
    const __m256i both = _mm256_xor_si256(_mm256_set1_epi32(static_cast<int32_t>(word_at(b))), _mm256_set1_epi32(INT32_MIN));
    const __m256i place = _mm256_set_epi64x(0x0302030203020302, 0x0302030203020302, 0x0100010001000100, 0x0100010001000100);
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes)), _mm512_cvtph_ps(_mm256_shuffle_epi8(both, place)));
}

// What blocks of Q4_K and Q5_K have in common: 64 bytes' low nibbles are groups 4 i and 4 i + 2, high ones the others.
template <class Codes>
HPROF_VNNI inline void add_groups(const Codes& codes, __m512 scales, const Integers* w, Sums& sums) {
    for (int v = 0; v < 4; ++v) {
        const int first = v / 2 * 4 + v % 2;
        const __m512i lanes = halves(_mm256_set1_epi32(first), _mm256_set1_epi32(first + 2));
        const __m512 of_lanes = _mm512_mul_ps(_mm512_permutexvar_ps(lanes, scales), _mm512_load_ps(w[v / 2].step[v % 2]));
        sums.add(v, codes_times<false>(codes.of[v], w[v / 2], v % 2), of_lanes);
    }
    const __m512i zeros = _mm512_set_epi32(15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8);
    const __m512 first = _mm512_castps256_ps512(_mm256_load_ps(w[0].sums));
    const __m512 all = _mm512_insertf32x8(first, _mm256_load_ps(w[1].sums), 1);
    sums.add(3, _mm512_permutexvar_ps(zeros, scales), all);
}

struct FourVectors {
    __m512i of[4];
};

struct IntegerQ4K {
    using Floats = Q4K;
    static constexpr Order kOrder = Order::kPairs;
    static constexpr int kOffset = 0, kIntegers = 2, kSums = 4;

    HPROF_VNNI static void add(Bytes b, const Integers* w, Sums& sums) {
        const __m512i first = _mm512_loadu_si512(b + 16), second = _mm512_loadu_si512(b + 80);
        const FourVectors codes{{low_nibbles(first), high_nibbles(first), low_nibbles(second), high_nibbles(second)}};
        add_groups(codes, scales_and_zeros(b), w, sums);
    }
};

struct IntegerQ5K {
    using Floats = Q5K;
    static constexpr Order kOrder = Order::kPairs;
    static constexpr int kOffset = 0, kIntegers = 2, kSums = 4;

    HPROF_VNNI static void add(Bytes b, const Integers* w, Sums& sums) {
        const __m512i first = _mm512_loadu_si512(b + 48), second = _mm512_loadu_si512(b + 112);
        const __m512i fifth = both_halves(half_vector_at(b + 16));
        const FourVectors codes{{with_fifth<0>(low_nibbles(first), fifth), with_fifth<1>(high_nibbles(first), fifth),
                                 with_fifth<4>(low_nibbles(second), fifth), with_fifth<5>(high_nibbles(second), fifth)}};
        add_groups(codes, scales_and_zeros(b), w, sums);
    }

   private:
    // Bit `group` of `fifth` is worth 16 in the first half, bit `group + 2` in the second.
    template <int group>
    static __m512i with_fifth(__m512i codes, __m512i fifth) {
        const __m512i bits = halves(_mm256_set1_epi8(static_cast<char>(1 << group)), _mm256_set1_epi8(static_cast<char>(4 << group)));
        return _mm512_mask_add_epi8(codes, _mm512_test_epi8_mask(fifth, bits), codes, _mm512_set1_epi8(16));
    }
};

struct IntegerQ6K {
    using Floats = Q6K;
    static constexpr Order kOrder = Order::kAsTheyAre;
    static constexpr int kOffset = 32, kIntegers = 2, kSums = 4;

    HPROF_VNNI static void add(Bytes b, const Integers* w, Sums& sums) {
        const __m512i top = _mm512_set1_epi8(0x30);
        const __m512i up = halves(_mm256_set1_epi16(4), _mm256_set1_epi16(2)), down = halves(_mm256_setzero_si256(), _mm256_set1_epi16(2));
        const __m512 scales = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes_at(b + 192))), whole_half_at(b + 208));
        for (int i = 0; i < 2; ++i) {
            const __m512i lower = _mm512_loadu_si512(b + 64 * i), upper = both_halves(half_vector_at(b + 128 + 32 * i));
            const __m512i first = _mm512_or_si512(low_nibbles(lower), _mm512_and_si512(_mm512_sllv_epi16(upper, up), top));
            const __m512i second = _mm512_or_si512(high_nibbles(lower), _mm512_and_si512(_mm512_srlv_epi16(upper, down), top));
            add_quarters(8 * i, first, scales, w[i], 0, sums.of[2 * i]);
            add_quarters(8 * i + 4, second, scales, w[i], 1, sums.of[2 * i + 1]);
        }
    }

   private:
    HPROF_VNNI static void add_quarters(int first, __m512i codes, __m512 scales, const Integers& w, int v, __m512& sum) {
        const __m512i lanes = _mm512_add_epi32(_mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0), _mm512_set1_epi32(first));
        const __m512 of_lanes = _mm512_mul_ps(_mm512_permutexvar_ps(lanes, scales), _mm512_load_ps(w.step[v]));
        sum = _mm512_fmadd_ps(codes_times<true>(codes, w, v), of_lanes, sum);
    }
};

// Blocks that make no whole `Integers`, from column `at` on, in float.
template <class Quant>
inline __m512 few_times(Bytes block, const float* x, int at, int n_cols) {
    __m512 sum = _mm512_setzero_ps();
    for (; at < n_cols; at += Quant::kWeights, block += Quant::kBytes) {
        Quant::each(block, [&](int i, __m512 w) { sum = _mm512_fmadd_ps(w, _mm512_loadu_ps(x + at + kLanes * i), sum); });
    }
    return sum;
}

// Rows times `whole`, and times x where blocks are left.
template <class Type>
HPROF_VNNI void integer_rows_times(Bytes row, int64_t row_bytes, int n_rows, const Integers* whole, const float* x,
                                   int n_cols, Stretch stretch, float* products) {
    using Quant = typename Type::Floats;
    constexpr int kStep = Type::kIntegers * Integers::kNumbers, kStepBytes = kStep / Quant::kWeights * Quant::kBytes;
    const int n_steps = n_cols / kStep;
    for (int r = 0; r < n_rows; ++r, row += row_bytes) {
        Sums sums;
        Bytes blocks = row;
        for (int i = 0; i < n_steps; ++i, blocks += kStepBytes) {
            for (int at = 0; at < kStepBytes; at += kLine) stretch.foresee(blocks + at);
            Type::add(blocks, whole + i * Type::kIntegers, sums);
        }
        products[r] = _mm512_reduce_add_ps(_mm512_add_ps(sums.all<Type::kSums>(), few_times<Quant>(blocks, x, n_steps * kStep, n_cols)));
    }
}

template <class Type>
void set_block(Integers& numbers, int block, const float* x) {
    numbers.set<Type::kOrder, Type::kOffset>(block, x);
}

struct IntegerKernels {
    void (*set_block)(Integers&, int, const float*) = nullptr;  // null: this type has none
    void (*rows_times)(Bytes, int64_t, int, const Integers*, const float*, int, Stretch, float*) = nullptr;
};

template <class Type>
constexpr IntegerKernels integer_kernels() {
    return {set_block<Type>, integer_rows_times<Type>};
}

// In the order of `kKernels`.
constexpr IntegerKernels kIntegerKernels[] = {
    {}, {}, {},  // floats
    integer_kernels<IntegerQ8_0>(), integer_kernels<IntegerQ4_0>(), integer_kernels<IntegerQ4_1>(),
    {}, {}, {}, {},  // Q5_0, Q5_1, Q2_K, Q3_K
    integer_kernels<IntegerQ4K>(), integer_kernels<IntegerQ5K>(), integer_kernels<IntegerQ6K>(),
    integer_kernels<IntegerIq4Nl>(), {}, integer_kernels<IntegerMxfp4>()};
static_assert(sizeof kIntegerKernels / sizeof *kIntegerKernels == sizeof kKernels / sizeof *kKernels);

// Of a row's first numbers, as many as make whole `Integers`, for what `kernels` multiply.
inline void row_to_integers(const IntegerKernels& kernels, const float* x, int n, Integers* to) {
    constexpr int kBlocks = Integers::kNumbers / Integers::kOfBlock;
    for (int block = 0; block < n_integers(n) * kBlocks; ++block) {
        kernels.set_block(to[block / kBlocks], block % kBlocks, x + block * Integers::kOfBlock);
    }
}

inline bool has_integer_products() { return __builtin_cpu_supports("avx512vnni"); }

}  // namespace hprof
