// Gated FFNs of one layer on the host: all chosen experts (a dense FFN is one), from the bytes as they are stored.
//
// One job a layer. Its threads share out rows of gate and up, then rows of down; each row of weights is read once, and
// each number is computed by one thread in one order, so results depend on no timing and no number of threads. Compiled
// where it is first used: executor/host/stored.py.
#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "integer_rows.hpp"
#include "rows.hpp"
#include "team.hpp"

namespace hprof {

// In numbers as executor/host/stored.py has them.
enum class Activation : int32_t { kSilu = 0, kGelu = 1, kOaiSwiglu = 2 };
enum class Numbers : int32_t { kFloat32 = 0, kBfloat16 = 1 };

// One projection of all experts: row r of expert e begins at `at + e * place_stride + r * row_bytes`.
struct Matrices {
    Bytes at;
    int64_t place_stride;
    int64_t row_bytes;
    int32_t n_rows;
    int32_t n_cols;
    int32_t quant;
    int32_t reserved;
    const float* bias;   // (experts, n_rows); null: none
    const float* scale;  // (experts,); null: 1. Gate's and up's counts before the bias, down's after it
};

struct Layer {
    Matrices gate, up, down;
    int32_t n_experts;
    int32_t n_used;
    Activation activation;
    int32_t weighs_input;  // whether a choice's weight counts on gate and up, instead of on what comes out
};

struct Tokens {
    const void* rows;      // (n, n_cols of gate)
    const int64_t* ids;    // (n, n_used); null: all choose expert 0
    const float* weights;  // (n, n_used); null: 1
    const uint8_t* only;   // (n_experts,): which experts count; null: all
    void* out;             // (n, n_rows of down), the weighted sums
    Numbers numbers;       // of rows and out
    int32_t n;
    int32_t n_threads;
};

namespace {

// Rows that a thread takes at a time: of gate and up, and of down, where it takes them of all experts.
constexpr int kRowsIn = Integers::kOfBlock, kRowsOut = 16;

float activated(float gate, float up, Activation activation) {
    switch (activation) {
        case Activation::kSilu:
            return gate / (1 + std::exp(-gate)) * up;
        case Activation::kGelu:
            return 0.5f * gate * (1 + std::tanh(0.7978845608f * (gate + 0.044715f * gate * gate * gate))) * up;
        case Activation::kOaiSwiglu: {
            const float g = std::min(gate, 7.f), u = std::min(std::max(up, -7.f), 7.f);
            return g / (1 + std::exp(-1.702f * g)) * (u + 1);
        }
    }
    return 0;
}

// The choices that one expert serves: `pairs[from:to]`, each a token and a rank among its choices.
struct Group {
    int expert, from, to;
};

// Memory that an owner keeps from layer to layer: fresh memory costs more than what is done with it.
struct Kept {
    Floats rows, inner;
    Vector<Integers> whole_gate, whole_up, whole_inner;  // up's, where it reads rows in another form
};

class Run : public Job {
   public:
    Run(const Layer& layer, const Tokens& tokens, Kept& kept)
        : layer_(layer), tokens_(tokens), hidden_(layer.gate.n_cols), n_ff_(layer.gate.n_rows), rows_(kept.rows),
          inner_(kept.inner), whole_gate_(kept.whole_gate), whole_up_(kept.whole_up), whole_inner_(kept.whole_inner) {}

    int n_phases() const override { return 3; }

    int n_chunks(int phase) const override {
        if (phase == kBegin) return 1;
        return phase == kIn ? static_cast<int>(groups_.size()) * chunks(n_ff_, kRowsIn) : chunks(layer_.down.n_rows, kRowsOut);
    }

    // Its first bytes on their way before the chunk before it is done.
    void foresee(int phase, int chunk) const override { phase == kIn ? begin_of_input(chunk) : begin_of_output(chunk); }

    void work(int phase, int chunk) override {
        thread_local Scratch scratch;
        if (phase == kBegin) return read_tokens();
        phase == kIn ? gate_and_up(chunk, scratch) : down(chunk, scratch);
    }

   private:
    static constexpr int kBegin = 0, kIn = 1;  // what all chunks read, by whoever is free; gate and up; then down

    void read_tokens() {
        group();
        grow(rows_, static_cast<size_t>(tokens_.n) * hidden_);
        grow(inner_, pairs_.size() * n_ff_);
        read_rows();
        set_whole_rows(layer_.gate, whole_gate_);
        if (has_own_rows(layer_.up)) set_whole_rows(layer_.up, whole_up_);
        if (integers_of(layer_.down)) grow(whole_inner_, pairs_.size() * n_integers(n_ff_));
    }

    template <class T>
    static void grow(Vector<T>& numbers, size_t n) {
        if (numbers.size() < n) numbers.resize(n);
    }

    // What multiplies a matrix in whole numbers; null: nothing does.
    static const IntegerKernels* integers_of(const Matrices& m) {
        static const bool is_possible = has_integer_products();
        const IntegerKernels& kernels = kIntegerKernels[m.quant];
        return is_possible && kernels.rows_times ? &kernels : nullptr;
    }

    // Whether up reads rows in another form than gate does.
    bool has_own_rows(const Matrices& up) const {
        const IntegerKernels *own = integers_of(up), *of_gate = integers_of(layer_.gate);
        return own && !(of_gate && of_gate->set_block == own->set_block);
    }

    void set_whole_rows(const Matrices& m, Vector<Integers>& whole) {
        const IntegerKernels* kernels = integers_of(m);
        if (!kernels) return;
        const size_t n = n_integers(hidden_);
        grow(whole, tokens_.n * n);
        for (int i = 0; i < tokens_.n; ++i) row_to_integers(*kernels, &rows_[static_cast<size_t>(i) * hidden_], hidden_, &whole[i * n]);
    }

    const Vector<Integers>& read_by(const Matrices& m) const {
        return &m == &layer_.down ? whole_inner_ : &m == &layer_.up && has_own_rows(m) ? whole_up_ : whole_gate_;
    }

    // One thread's own.
    struct Scratch {
        Floats wide, products, sums;
    };

    static int chunks(int n_rows, int of) { return (n_rows + of - 1) / of; }

    Bytes row_at(const Matrices& m, const Group& g, int r) const { return m.at + g.expert * m.place_stride + r * m.row_bytes; }

    const Group& group_of_input(int chunk) const { return groups_[chunk / chunks(n_ff_, kRowsIn)]; }
    int row_of_input(int chunk) const { return chunk % chunks(n_ff_, kRowsIn) * kRowsIn; }

    void begin_of_input(int chunk) const {
        prefetch_begin(row_at(layer_.gate, group_of_input(chunk), row_of_input(chunk)));
    }

    void begin_of_output(int chunk) const {
        if (!groups_.empty()) prefetch_begin(row_at(layer_.down, groups_.front(), chunk * kRowsOut));
    }

    // Order the choices by expert, and by token within one: the order in which outputs are added up.
    void group() {
        const int n_choices = tokens_.n * layer_.n_used;
        std::vector<int> starts(layer_.n_experts + 1, 0), chosen(n_choices);
        for (int i = 0; i < n_choices; ++i) {  // read once: where a wait is missing, rows change meanwhile
            const int64_t expert = expert_of(i);
            chosen[i] = counts(expert) ? static_cast<int>(expert) : kNone;
            if (chosen[i] != kNone) ++starts[chosen[i] + 1];
        }
        for (int e = 0; e < layer_.n_experts; ++e) {
            if (starts[e + 1]) groups_.push_back({e, starts[e], starts[e] + starts[e + 1]});
            starts[e + 1] += starts[e];
        }
        pairs_.resize(starts.back());
        for (int i = 0; i < n_choices; ++i) {
            if (chosen[i] != kNone) pairs_[starts[chosen[i]]++] = i;
        }
    }

    static constexpr int kNone = -1;

    int64_t expert_of(int choice) const { return tokens_.ids ? tokens_.ids[choice] : 0; }
    bool counts(int64_t expert) const {  // what is no expert's number is left out
        return expert >= 0 && expert < layer_.n_experts && (!tokens_.only || tokens_.only[expert]);
    }
    float weight_of(int choice) const { return tokens_.weights ? tokens_.weights[choice] : 1; }

    void read_rows() {
        const size_t n = static_cast<size_t>(tokens_.n) * hidden_;
        if (tokens_.numbers == Numbers::kFloat32) {
            std::memcpy(rows_.data(), tokens_.rows, n * sizeof(float));
            return;
        }
        const auto* from = static_cast<const uint16_t*>(tokens_.rows);
        for (size_t i = 0; i < n; ++i) {
            const uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
            std::memcpy(&rows_[i], &bits, sizeof bits);
        }
    }

    void write(int token, int at, float number) {
        const size_t place = static_cast<size_t>(token) * layer_.down.n_rows + at;
        if (tokens_.numbers == Numbers::kFloat32) {
            static_cast<float*>(tokens_.out)[place] = number;
            return;
        }
        uint32_t bits;
        std::memcpy(&bits, &number, sizeof bits);
        const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);  // to the nearest, ties to even
        static_cast<uint16_t*>(tokens_.out)[place] =
            static_cast<uint16_t>(number != number ? 0x7fc0 : rounded >> 16);
    }

    void gate_and_up(int chunk, Scratch& scratch) {
        const Group& g = group_of_input(chunk);
        const int begin = row_of_input(chunk), end = std::min(begin + kRowsIn, n_ff_);
        each_product(layer_.gate, g, begin, end, true, row_at(layer_.up, g, begin), scratch,
                     [&](int pair, int r, float product) { inner(pair, r) = completed(layer_.gate, g, r, pair, product); });
        each_product(layer_.up, g, begin, end, true, nullptr, scratch, [&](int pair, int r, float product) {
            float& here = inner(pair, r);
            here = activated(here, completed(layer_.up, g, r, pair, product), layer_.activation);
        });
        const int at = begin / Integers::kNumbers, n = n_integers(n_ff_);
        const IntegerKernels* of_down = integers_of(layer_.down);
        if (!of_down || g.to - g.from > 1 || at >= n) return;
        of_down->set_block(whole_inner_[static_cast<size_t>(g.from) * n + at], begin % Integers::kNumbers / kRowsIn, &inner(g.from, begin));
    }

    float& inner(int pair, int r) { return inner_[static_cast<size_t>(pair) * n_ff_ + r]; }

    float completed(const Matrices& m, const Group& g, int r, int pair, float product) const {
        if (layer_.weighs_input) product *= weight_of(pairs_[pair]);
        if (m.scale) product *= m.scale[g.expert];
        return m.bias ? product + m.bias[static_cast<size_t>(g.expert) * m.n_rows + r] : product;
    }

    void down(int chunk, Scratch& scratch) {
        const Matrices& m = layer_.down;
        const int begin = chunk * kRowsOut, end = std::min(begin + kRowsOut, m.n_rows);
        Floats& sums = scratch.sums;
        sums.assign(static_cast<size_t>(tokens_.n) * kRowsOut, 0.f);
        for (const Group& g : groups_) {
            const Bytes next = &g == &groups_.back() ? nullptr : row_at(m, *(&g + 1), begin);
            const float scale = m.scale ? m.scale[g.expert] : 1;
            each_product(m, g, begin, end, false, next, scratch, [&](int pair, int r, float product) {
                const float bias = m.bias ? m.bias[static_cast<size_t>(g.expert) * m.n_rows + r] : 0;
                const float weight = layer_.weighs_input ? 1 : weight_of(pairs_[pair]);
                sums[pairs_[pair] / layer_.n_used * kRowsOut + r - begin] += (product + bias) * (scale * weight);
            });
        }
        for (int token = 0; token < tokens_.n; ++token) {
            for (int r = begin; r < end; ++r) write(token, r, sums[token * kRowsOut + r - begin]);
        }
    }

    // f(choice, row, product) for rows of a group's expert and what each of its choices reads, which is its token's row
    // or its own. Several choices share a widened row. `next`: what this thread reads then; null: it has been foreseen.
    template <class F>
    void each_product(const Matrices& m, const Group& g, int begin, int end, bool of_token, Bytes next, Scratch& scratch,
                      F f) {
        const Kernels& kernels = kKernels[m.quant];
        const auto row_of = [&](int pair) { return static_cast<size_t>(of_token ? pairs_[pair] / layer_.n_used : pair); };
        const auto at = [&](int pair) { return (of_token ? rows_ : inner_).data() + row_of(pair) * m.n_cols; };
        if (g.to - g.from == 1) {
            grow(scratch.products, end - begin);
            float* products = scratch.products.data();
            const Bytes first = row_at(m, g, begin);
            const Stretch stretch(row_at(m, g, end), next ? next : first);
            if (const IntegerKernels* integers = integers_of(m)) {
                const Integers* whole = read_by(m).data() + row_of(g.from) * n_integers(m.n_cols);
                integers->rows_times(first, m.row_bytes, end - begin, whole, at(g.from), m.n_cols, stretch, products);
            } else {
                kernels.rows_times(first, m.row_bytes, end - begin, at(g.from), m.n_cols, stretch, products);
            }
            for (int r = begin; r < end; ++r) f(g.from, r, products[r - begin]);
            return;
        }
        if (next) prefetch_begin(next);
        grow(scratch.wide, m.n_cols);
        for (int r = begin; r < end; ++r) {
            kernels.widen(row_at(m, g, r), scratch.wide.data(), m.n_cols);
            for (int pair = g.from; pair < g.to; pair += kAtOnce) {
                const int n = std::min(kAtOnce, g.to - pair);
                const float* read[kAtOnce];
                float products[kAtOnce];
                for (int k = 0; k < n; ++k) read[k] = at(pair + k);
                kWideTimes[n](scratch.wide.data(), read, m.n_cols, products);
                for (int k = 0; k < n; ++k) f(pair + k, r, products[k]);
            }
        }
    }

    const Layer& layer_;
    const Tokens& tokens_;
    int hidden_, n_ff_;
    std::vector<int> pairs_;  // choices, token * n_used + rank
    std::vector<Group> groups_;
    Floats &rows_, &inner_;
    Vector<Integers>&whole_gate_, &whole_up_, &whole_inner_;
};

// What one thread began, and who works on it. A thread may end while they do.
class Owner {
   public:
    void begin(const Layer& layer, const Tokens& tokens, int n_helpers) {
        end();  // an owner that was interrupted did not
        team_.begin(run_.emplace(layer, tokens, kept_), n_helpers);
    }

    void end() { team_.end(); }

    static Owner& of_this_thread() {
        thread_local Owner owner;
        return owner;
    }

   private:
    Kept kept_;
    std::optional<Run> run_;
    Team team_;  // last: its helpers use the others
};

}  // namespace
}  // namespace hprof

#define HPROF_EXPORT extern "C" __attribute__((visibility("default")))

// Computes and returns; the calling thread is one of those that do.
HPROF_EXPORT void hprof_ffn(const hprof::Layer* layer, const hprof::Tokens* tokens) {
    hprof::Owner& owner = hprof::Owner::of_this_thread();
    owner.begin(*layer, *tokens, tokens->n_threads - 1);
    owner.end();
}

// Returns at once, leaving a thread's room to the calling one; both arguments must stay until the same thread's
// `hprof_ffn_end`, which helps with what is left.
HPROF_EXPORT void hprof_ffn_begin(const hprof::Layer* layer, const hprof::Tokens* tokens) {
    hprof::Owner::of_this_thread().begin(*layer, *tokens, std::max(1, tokens->n_threads - 1));
}

HPROF_EXPORT void hprof_ffn_end() { hprof::Owner::of_this_thread().end(); }
