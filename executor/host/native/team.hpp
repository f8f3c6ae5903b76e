// Threads that share out a job's chunks, as they come to them.
//
// Nobody waits for a thread: whoever is free takes the next chunk, and who finishes the last one of a phase opens the
// next phase. A thread that the system has put aside, or that is still waking up, holds up what it took and no more.
#pragma once

#include <immintrin.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace hprof {

// What is done in chunks, phase after phase. Chunks of one phase are independent of each other.
class Job {
   public:
    virtual ~Job() = default;
    virtual int n_phases() const = 0;
    virtual int n_chunks(int phase) const = 0;
    virtual void foresee(int phase, int chunk) const = 0;  // the same thread will do this one next
    virtual void work(int phase, int chunk) = 0;
};

// One owner begins jobs, one at a time, and ends them; its helpers live as long as the team.
class Team {
   public:
    ~Team() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            is_over_.store(true);
        }
        opened_.notify_all();
        wanted_.notify_all();
        for (std::thread& helper : helpers_) helper.join();
    }

    // Let up to `n_helpers` threads begin; the job must stay until `end`.
    void begin(Job& job, int n_helpers) {
        hire(n_helpers);
        want(n_helpers);
        job_ = &job;
        phase_ = -1;
        is_busy_.store(true);
        open_next_phase();
        wake(1);
    }

    // Help until all is done.
    void end() {
        while (is_busy_.load(std::memory_order_acquire)) {
            if (!take_chunks()) pause_and_yield();
        }
    }

   private:
    // A token in which the host has one layer: to wake all up takes as long as several.
    static constexpr std::chrono::milliseconds kAwake{10};

    static void pause_and_yield() {
        for (int i = 0; i < 8; ++i) _mm_pause();  // some 140 cycles each
        std::this_thread::yield();
    }

    void hire(int n_helpers) {
        try {
            while (static_cast<int>(helpers_.size()) < n_helpers) {
                helpers_.emplace_back([this, number = static_cast<int>(helpers_.size())] { serve(number); });
            }
        } catch (const std::system_error&) {  // no more threads to be had: those that are there do it
        }
    }

    void want(int n_helpers) {
        const int before = n_helpers_.load(std::memory_order_relaxed);
        if (n_helpers == before) return;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            n_helpers_.store(n_helpers);
        }
        if (n_helpers > before) wanted_.notify_all();
    }

    // Let so many of those that sleep wake up while a job lasts, whether or not a chunk is left of its present phase:
    // each then wakes others. To wake all takes the one who does it as long as a layer, on a virtual machine.
    void wake(int n) {
        if (n_asleep_.load() == 0 || !is_busy_.load()) return;  // who counts itself looks once more
        { std::lock_guard<std::mutex> lock(mutex_); }           // and has looked, or sleeps
        for (int i = 0; i < n; ++i) opened_.notify_one();
    }

    void serve(int number) {
        auto until = std::chrono::steady_clock::now() + kAwake;
        while (!is_over_.load(std::memory_order_relaxed)) {
            if (!is_wanted(number)) stand_by(number);
            if (take_chunks() || is_busy_.load(std::memory_order_relaxed)) {
                until = std::chrono::steady_clock::now() + kAwake;
            } else if (std::chrono::steady_clock::now() > until) {
                sleep(number);
                wake(2);
                until = std::chrono::steady_clock::now() + kAwake;
            }
            pause_and_yield();
        }
    }

    void sleep(int number) {
        std::unique_lock<std::mutex> lock(mutex_);
        n_asleep_.fetch_add(1);
        opened_.wait(lock, [&] { return is_over_.load() || !is_wanted(number) || is_busy_.load(); });
        n_asleep_.fetch_sub(1);
    }

    // Apart from those that sleep, lest it be woken in the place of one that is wanted.
    void stand_by(int number) {
        std::unique_lock<std::mutex> lock(mutex_);
        wanted_.wait(lock, [&] { return is_over_.load() || is_wanted(number); });
    }

    bool is_wanted(int number) const { return number < n_helpers_.load(std::memory_order_relaxed); }

    // A chunk of the phase that is open, where more than `spared` are left; else -1. Until it is done, the phase stays.
    int claim(uint32_t spared) {
        uint64_t seen = claims_.load(std::memory_order_acquire);
        while (left_of(seen) > spared) {
            if (claims_.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
                return n_chunks_ - static_cast<int>(left_of(seen));
            }
        }
        return -1;
    }

    // Work as long as there are chunks; gives whether there was one.
    bool take_chunks() {
        int here = claim(0);
        if (here < 0) return false;
        while (here >= 0) {
            Job& job = *job_;
            const int phase = phase_, n_chunks = n_chunks_;
            const int after = claim(n_helpers_.load(std::memory_order_relaxed) + 1);  // the last go to who is free first
            if (after >= 0) job.foresee(phase, after);
            job.work(phase, here);
            if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == n_chunks) open_next_phase();
            here = after >= 0 ? after : claim(0);
        }
        return true;
    }

    // By the owner, or by who did a phase's last chunk: nobody else reads or writes what is set here.
    void open_next_phase() {
        while (++phase_ < job_->n_phases()) {
            n_chunks_ = job_->n_chunks(phase_);
            if (n_chunks_ == 0) continue;
            done_.store(0, std::memory_order_relaxed);
            claims_.store(++ticket_ << 32 | static_cast<uint64_t>(n_chunks_));
            return;
        }
        is_busy_.store(false, std::memory_order_release);
    }

    static uint32_t left_of(uint64_t claims) { return static_cast<uint32_t>(claims); }

    Job* job_ = nullptr;
    int phase_ = 0, n_chunks_ = 0;
    uint64_t ticket_ = 0;
    alignas(64) std::atomic<uint64_t> claims_{0};  // the phase's ticket, and in the low half how many chunks are left
    alignas(64) std::atomic<int> done_{0};
    alignas(64) std::atomic<bool> is_busy_{false};
    std::atomic<int> n_helpers_{0};
    std::atomic<int> n_asleep_{0};
    std::atomic<bool> is_over_{false};
    std::mutex mutex_;
    std::condition_variable opened_, wanted_;
    std::vector<std::thread> helpers_;
};

}  // namespace hprof
