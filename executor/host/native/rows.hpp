// Stored rows of every quant type times one row of activations, and widened ones times several.
#pragma once

#include <new>
#include <vector>

#include "blocks.hpp"

namespace hprof {

constexpr int kLanes = 16;
constexpr int kLine = 64;
constexpr int kAhead = 1536;  // bytes; a core reads some 5 a ns, and memory answers after some 150 ns

inline void prefetch(Bytes at) { _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0); }

// What the processor does not foresee: where the next stretch of rows begins.
inline void prefetch_begin(Bytes at) {
    for (int i = 0; i < kAhead; i += kLine) prefetch(at + i);
}

// A stretch of rows that are read one behind the other, and the one after it: what lies behind the end is another
// thread's, and to fetch it would cost memory's speed.
class Stretch {
   public:
    Stretch(Bytes end, Bytes next) : end_(end), from_end_(next - end) {}

    // Memory is asked for what is read `kAhead` bytes after `at`.
    void foresee(Bytes at) const { prefetch(at + kAhead < end_ ? at + kAhead : at + kAhead + from_end_); }

   private:
    Bytes end_;
    int64_t from_end_;
};

// Memory of whole cache lines: a vector that lies across two takes two loads.
template <class T>
struct InLines {
    using value_type = T;
    static constexpr std::align_val_t kAligned{kLine};
    InLines() = default;
    template <class U>
    InLines(const InLines<U>&) {}
    T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kAligned)); }
    void deallocate(T* memory, size_t) { ::operator delete(memory, kAligned); }
    bool operator==(const InLines&) const { return true; }
    bool operator!=(const InLines&) const { return false; }
};

template <class T>
using Vector = std::vector<T, InLines<T>>;
using Floats = Vector<float>;

// Rows that lie one behind the other times x. Four sums, so that one product need not wait for the last: which one a
// weight goes to depends on its place alone.
template <class Quant>
void rows_times(Bytes row, int64_t row_bytes, int n_rows, const float* x, int n_cols, Stretch stretch, float* products) {
    constexpr int kBlocks = Quant::kWeights < 4 * kLanes ? 4 * kLanes / Quant::kWeights : 1;
    constexpr int kStep = kBlocks * Quant::kWeights, kStepBytes = kBlocks * Quant::kBytes;
    constexpr int kLines = (kStepBytes + kLine - 1) / kLine + (kStepBytes % kLine != 0);
    for (int r = 0; r < n_rows; ++r, row += row_bytes) {
        __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
        const auto add = [&](Bytes block, const float* here, int first) __attribute__((always_inline)) {
            Quant::each(block, [&](int i, __m512 w) __attribute__((always_inline)) {
                __m512& sum = sums[(first + i) & 3];
                sum = _mm512_fmadd_ps(w, _mm512_loadu_ps(here + kLanes * i), sum);
            });
        };
        Bytes block = row;
        int at = 0;
        for (; at + kStep <= n_cols; at += kStep, block += kStepBytes) {
            for (int i = 0; i < kLines; ++i) stretch.foresee(block + kLine * i);
#pragma GCC unroll 4
            for (int k = 0; k < kBlocks; ++k) {
                add(block + k * Quant::kBytes, x + at + k * Quant::kWeights, k * Quant::kWeights / kLanes);
            }
        }
        for (; at < n_cols; at += Quant::kWeights, block += Quant::kBytes) add(block, x + at, 0);
        const __m512 sum = _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3]));
        products[r] = _mm512_reduce_add_ps(sum);
    }
}

template <class Quant>
void widen(Bytes row, float* to, int n_cols) {
    for (int at = 0; at < n_cols; at += Quant::kWeights, row += Quant::kBytes) {
        Quant::each(row, [&](int i, __m512 w) __attribute__((always_inline)) {
            _mm512_storeu_ps(to + at + kLanes * i, w);
        });
    }
}

struct Kernels {
    void (*rows_times)(Bytes, int64_t, int, const float*, int, Stretch, float*);
    void (*widen)(Bytes, float*, int);
};

template <class Quant>
constexpr Kernels of() {
    return {rows_times<Quant>, widen<Quant>};
}

// In the order of `QUANTS` in executor/host/stored.py.
constexpr Kernels kKernels[] = {of<F32>(),  of<F16>(),  of<Bf16>(), of<Q8_0>(), of<Q4_0>(),  of<Q4_1>(),
                                of<Q5_0>(), of<Q5_1>(), of<Q2K>(),  of<Q3K>(),  of<Q4K>(),   of<Q5K>(),
                                of<Q6K>(),  of<Iq4Nl>(), of<Iq4Xs>(), of<Mxfp4>()};

// A widened row times N others at once, so that no sum waits for itself. Each has two sums, whatever N is.
template <int N>
void wide_times(const float* wide, const float* const* x, int n_cols, float* products) {
    __m512 even[N], odd[N];
    for (int k = 0; k < N; ++k) even[k] = odd[k] = _mm512_setzero_ps();
    int at = 0;
    for (; at + 2 * kLanes <= n_cols; at += 2 * kLanes) {
        const __m512 first = _mm512_loadu_ps(wide + at), second = _mm512_loadu_ps(wide + at + kLanes);
        for (int k = 0; k < N; ++k) {
            even[k] = _mm512_fmadd_ps(first, _mm512_loadu_ps(x[k] + at), even[k]);
            odd[k] = _mm512_fmadd_ps(second, _mm512_loadu_ps(x[k] + at + kLanes), odd[k]);
        }
    }
    for (int k = 0; k < N; ++k) {
        if (at < n_cols) even[k] = _mm512_fmadd_ps(_mm512_loadu_ps(wide + at), _mm512_loadu_ps(x[k] + at), even[k]);
        products[k] = _mm512_reduce_add_ps(_mm512_add_ps(even[k], odd[k]));
    }
}

constexpr int kAtOnce = 4;
constexpr void (*kWideTimes[])(const float*, const float* const*, int, float*) = {
    nullptr, wide_times<1>, wide_times<2>, wide_times<3>, wide_times<4>};

}  // namespace hprof
