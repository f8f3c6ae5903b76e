// The recorder of this process: opens the spool, starts CUPTI, follows the control page, and ends in order.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <string_view>

#include "cupti.hpp"
#include "spool.hpp"

namespace hprof {

class Recorder {
 public:
  static Recorder& instance();  // never destroyed: threads may outlive main's static objects

  // CUDA has started here: open the spool and begin with CUPTI.
  void start_cupti();
  // At the process's exit: flushes all and closes the spool.
  void stop();

  // Whether events are wanted now; opens the spool at the first.
  bool is_on();
  uint64_t now_ns();
  uint64_t now_realtime_ns() const;

  // Appends under the lock. `fill` gets the spool for its texts and returns the record. Nothing of CUPTI may be called
  // under it: CUPTI's own threads hold locks of theirs where they wait for this one.
  template <typename Fill>
  void append(Fill fill) {
    std::lock_guard<std::mutex> hold(spool_lock_);
    if (spool_.is_open()) spool_.append(fill(spool_));
  }
  template <typename Use>
  void with_spool(Use use) {
    std::lock_guard<std::mutex> hold(spool_lock_);
    if (spool_.is_open()) use(spool_);
  }

  // The name of an NVTX range that begins or ends: it may start or stop the recording.
  bool watches_ranges() const { return !only_range_.empty() || !until_range_.empty(); }
  bool is_only_range(std::string_view name) const { return !only_range_.empty() && name == only_range_; }
  void range_entered(std::string_view name);
  void only_range_left();

  // Whether a time of CUPTI's clock lies where recording was on; under the spool's lock.
  bool was_recording(uint64_t at_ns) const;

  // The number of this process's spool, from 1: what was told in an earlier one has to be told again.
  uint32_t generation() const { return generation_.load(); }
  std::mutex& nvtx_lock() { return nvtx_lock_; }

  // A sentence that hprof shows while the program runs.
  void tell_problem(const std::string& sentence);

 private:
  Recorder() = default;
  bool open();  // under state_lock_
  void read_settings();
  bool is_wanted_process() const;
  void write_facts();
  void apply_state();  // under state_lock_
  bool should_record() const;
  void run_thread();
  void stop_thread();
  void write_clock();
  void take_turn(CuptiSession& cupti, unsigned turn);
  void write_graph_nodes(const CuptiSession& cupti);
  void tell_fact(const char* key, const std::string& value);
  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();

  std::mutex nvtx_lock_;   // of the domains and ranges that nvtx.cpp keeps
  std::mutex state_lock_;  // taken before spool_lock_
  std::mutex spool_lock_;
  Spool spool_;
  ControlPage* control_ = nullptr;
  std::atomic<CuptiSession*> cupti_{nullptr};
  std::string folder_, only_range_, until_range_, process_pattern_, libraries_;
  Wanted wanted_;
  std::string without_;
  std::vector<uint64_t> changes_;  // when recording began, paused, began, ...; under spool_lock_
  bool has_settings_ = false;
  std::atomic<bool> is_refused_{false};  // this process is none of those asked for, or has no spool
  bool is_inherited_ = false;  // forked from a process whose CUPTI was running, which is of no use here
  std::atomic<uint32_t> generation_{0};
  std::atomic<bool> is_open_{false};
  std::atomic<bool> is_recording_{false};
  std::atomic<int> only_range_depth_{0};
  std::atomic<bool> until_range_met_{false};
  std::atomic<bool> thread_should_end_{false};
  unsigned long thread_ = 0;
  bool has_thread_ = false;
  int n_problems_ = 0;
  uint64_t written_nodes_[CuptiSession::kNodeTypes] = {};
};

}  // namespace hprof
