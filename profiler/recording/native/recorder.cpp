#include "recorder.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <regex.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "clock.hpp"
#include "trial.hpp"

namespace hprof {
namespace {

// Handlers run in the reverse order of their registration: one that is registered after libcupti was loaded runs before
// libcupti takes itself down. The first that runs does all.
void stop_at_exit() {
  std::atexit([] { Recorder::instance().stop(); });
}

constexpr uint64_t kFlushMs = 1000;  // what is completed is in the file a second later
constexpr std::size_t kMaxChanges = 1u << 16;  // that are remembered, an even number
constexpr uint64_t kPollNs = 20000000u;     // how soon a process follows the control page

std::string setting(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

std::string read_small_file(const char* path) {
  std::string content(4096, '\0');
  int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  ssize_t length = ::read(file, content.data(), content.size());
  ::close(file);
  content.resize(length > 0 ? std::size_t(length) : 0);
  return content;
}

}  // namespace

Recorder& Recorder::instance() {
  static Recorder* recorder = [] {
    auto* made = new Recorder();
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    return made;
  }();
  return *recorder;
}

void Recorder::read_settings() {
  if (has_settings_) return;
  has_settings_ = true;
  folder_ = setting("HPROF_SPOOL_FOLDER");
  only_range_ = setting("HPROF_SPOOL_ONLY_RANGE");
  until_range_ = setting("HPROF_SPOOL_UNTIL_RANGE");
  process_pattern_ = setting("HPROF_SPOOL_PROCESS");
  libraries_ = setting("HPROF_SPOOL_LIBCUPTI");
  without_ = setting("HPROF_SPOOL_WITHOUT");
  const auto is_wanted = [&](const char* kind) { return without_.find(kind) == std::string::npos; };
  wanted_ = {setting("HPROF_SPOOL_GRAPHS") == "node", is_wanted("calls"), is_wanted("waits"), is_wanted("memory")};
  is_refused_ = folder_.empty() || !is_wanted_process();
}

bool Recorder::is_wanted_process() const {
  if (process_pattern_.empty()) return true;
  std::string command = read_small_file("/proc/self/cmdline");
  while (!command.empty() && command.back() == '\0') command.pop_back();
  for (char& letter : command) letter = letter == '\0' ? ' ' : letter;
  regex_t pattern;
  if (regcomp(&pattern, process_pattern_.c_str(), REG_EXTENDED | REG_NOSUB) != 0) return false;
  const bool matches = regexec(&pattern, command.c_str(), 0, nullptr, 0) == 0;
  regfree(&pattern);
  return matches;
}

bool Recorder::open() {
  if (is_open_.load()) return true;
  read_settings();
  if (is_refused_) return false;
  const std::string path = folder_ + "/control";
  int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  void* page = file < 0 ? MAP_FAILED : mmap(nullptr, sizeof(ControlPage), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (file >= 0) ::close(file);
  if (page == MAP_FAILED) {
    is_refused_ = true;
    return false;
  }
  control_ = static_cast<ControlPage*>(page);
  const bool fits = std::memcmp(control_->magic, "hprofctl", 8) == 0 && control_->version == kFormatVersion;
  bool opened = false;
  if (fits && control_->finished.load() == 0) {
    std::lock_guard<std::mutex> hold(spool_lock_);
    opened = spool_.open(folder_.c_str(), control_);
    changes_.clear();
  }
  if (!opened) {
    munmap(page, sizeof(ControlPage));
    control_ = nullptr;
    is_refused_ = true;
    return false;
  }
  generation_.fetch_add(1);
  is_open_.store(true);
  write_facts();
  thread_should_end_.store(false);
  sigset_t all, before;  // the program's signals are for its own threads
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread{};
  has_thread_ = pthread_create(&thread, nullptr, [](void* recorder) -> void* {
                  static_cast<Recorder*>(recorder)->run_thread();
                  return nullptr;
                }, this) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  thread_ = thread;
  stop_at_exit();
  apply_state();
  return true;
}

void Recorder::write_facts() {
  std::string name = read_small_file("/proc/self/comm");
  while (!name.empty() && name.back() == '\n') name.pop_back();
  tell_fact("process name", name);
  tell_fact("graphs", wanted_.graph_nodes ? "node" : "graph");
  if (!without_.empty()) tell_fact("without", without_);
  write_clock();
}

void Recorder::tell_fact(const char* key, const std::string& value) {
  append([&](Spool& spool) {
    Record fact;
    fact.type = kFact;
    fact.name = spool.text(key);
    fact.extra = spool.text(value);
    return fact;
  });
}

void Recorder::write_clock() {
  CuptiSession* cupti = cupti_;
  Record clock;
  clock.type = kClock;
  clock.start = now_realtime_ns();
  clock.end = cupti != nullptr ? cupti->timestamp_ns() : 0;
  clock.bytes = clock_ns(CLOCK_MONOTONIC);
  append([&](Spool&) { return clock; });
}

void Recorder::start_cupti() {
  std::lock_guard<std::mutex> hold(state_lock_);
  if (!open() || cupti_ != nullptr) return;
  if (is_inherited_) return;
  const StartedCupti started = start_cupti_of(libraries_, wanted_);
  if (started.session == nullptr) {
    tell_problem(started.wrong);
    return;
  }
  cupti_ = started.session;
  tell_fact("cupti", std::to_string(started.version) + ", headers " + std::to_string(started.header_version));
  stop_at_exit();
  write_clock();
  is_recording_.store(false);  // so that the state is applied to CUPTI too
  apply_state();
}

bool Recorder::should_record() const {
  if (control_ == nullptr || control_->paused.load() != 0 || control_->full.load() != 0) return false;
  if (control_->finished.load() != 0 || until_range_met_.load()) return false;
  if (!only_range_.empty() && only_range_depth_.load() <= 0) return false;
  const uint64_t now = clock_ns(CLOCK_MONOTONIC), until = control_->until_ns.load();
  return now >= control_->from_ns.load() && (until == 0 || now < until);
}

void Recorder::apply_state() {
  const bool wanted = should_record();
  if (!is_open_.load() || wanted == is_recording_.load()) return;
  if (CuptiSession* cupti = cupti_.load()) cupti->record(wanted);
  const uint64_t now = now_ns();
  with_spool([&](Spool& spool) {
    Record state;
    state.type = kState;
    state.kind = wanted ? kBegan : kPaused;
    state.start = now;
    const uint32_t full = control_->full.load();
    if (full != 0) state.name = spool.text(full == 2 ? kDiskFull : kLimitReached);
    else if (until_range_met_.load()) state.name = spool.text("range met");
    spool.append_surely(state);
    if (wanted != (changes_.size() % 2 == 1)) changes_.push_back(now);
    if (changes_.size() > kMaxChanges) changes_.erase(changes_.begin(), changes_.begin() + kMaxChanges / 2);
  });
  is_recording_.store(wanted);
}

bool Recorder::was_recording(uint64_t at_ns) const {
  const auto later = std::upper_bound(changes_.begin(), changes_.end(), at_ns);
  return (later - changes_.begin()) % 2 == 1;
}

bool Recorder::is_on() {
  if (!is_open_.load(std::memory_order_acquire)) {
    if (is_refused_) return false;
    std::lock_guard<std::mutex> hold(state_lock_);
    if (!open()) return false;
  }
  return is_recording_.load(std::memory_order_relaxed);
}

uint64_t Recorder::now_ns() {
  CuptiSession* cupti = cupti_.load(std::memory_order_relaxed);
  return cupti != nullptr ? cupti->timestamp_ns() : clock_ns(CLOCK_REALTIME);
}

uint64_t Recorder::now_realtime_ns() const { return clock_ns(CLOCK_REALTIME); }

void Recorder::range_entered(std::string_view name) {
  std::lock_guard<std::mutex> hold(state_lock_);
  if (is_only_range(name)) ++only_range_depth_;
  if (!until_range_.empty() && name == until_range_) until_range_met_.store(true);
  apply_state();
}

void Recorder::only_range_left() {
  std::lock_guard<std::mutex> hold(state_lock_);
  --only_range_depth_;
  apply_state();
}

void Recorder::run_thread() {
  const uint64_t flush_ns = Trial::instance().number("flush_ms", kFlushMs) * 1000000u;
  const uint64_t turn_ns = Trial::instance().number("turn_ms", 0) * 1000000u;
  uint64_t flushed = clock_ns(CLOCK_MONOTONIC), turned = flushed;
  unsigned turn = 0;
  while (!thread_should_end_.load()) {
    timespec pause{0, long(kPollNs)};
    nanosleep(&pause, nullptr);
    CuptiSession* cupti = nullptr;
    bool has_paused = false;
    {
      std::lock_guard<std::mutex> hold(state_lock_);
      if (thread_should_end_.load()) return;
      const bool was_recording = is_recording_.load();
      apply_state();
      has_paused = was_recording && !is_recording_.load();
      cupti = cupti_;
    }
    const uint64_t now = clock_ns(CLOCK_MONOTONIC);
    if (turn_ns != 0 && cupti != nullptr && is_recording_.load() && now - turned >= turn_ns) {
      turned = now;
      take_turn(*cupti, turn++);
    }
    if (now - flushed < flush_ns && !has_paused) continue;
    flushed = now;
    if (cupti != nullptr) cupti->flush(false);
    if (cupti != nullptr) write_graph_nodes(*cupti);
    write_clock();
    with_spool([](Spool& spool) { spool.flush(); });
  }
}

void Recorder::take_turn(CuptiSession& cupti, unsigned turn) {
  const std::string name = std::string("trial without: ") + cupti.take_turn(turn);
  const uint64_t now = now_ns();
  append([&](Spool& spool) {
    Record mark;
    mark.type = kMark;
    mark.start = now;
    mark.name = spool.text(name);
    return mark;
  });
}

void Recorder::write_graph_nodes(const CuptiSession& cupti) {
  for (unsigned type = 0; type < CuptiSession::kNodeTypes; ++type) {
    const uint64_t made = cupti.graph_nodes(type);
    if (made == written_nodes_[type]) continue;
    written_nodes_[type] = made;
    append([&](Spool&) {
      Record nodes;
      nodes.type = kGraphNodes;
      nodes.kind = uint8_t(type);
      nodes.bytes = made;
      return nodes;
    });
  }
}

void Recorder::stop_thread() {
  thread_should_end_.store(true);
  if (has_thread_) pthread_join(thread_, nullptr);
  has_thread_ = false;
}

void Recorder::stop() {
  if (!is_open_.load()) return;
  stop_thread();
  std::lock_guard<std::mutex> hold(state_lock_);
  if (CuptiSession* cupti = cupti_.load()) {
    if (is_recording_.load()) cupti->record(false);
    cupti->flush(true);
    write_graph_nodes(*cupti);
  }
  write_clock();
  {
    std::lock_guard<std::mutex> hold_spool(spool_lock_);
    spool_.close();
  }
  is_recording_.store(false);
  is_open_.store(false);
  cupti_ = nullptr;
  is_refused_ = true;  // what comes now comes too late
}

void Recorder::tell_problem(const std::string& sentence) {
  const std::string path = folder_ + "/problem-" + std::to_string(getpid()) + "-" + std::to_string(n_problems_++);
  const std::string half = path + ".new";
  int file = ::open(half.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
  if (file >= 0) {
    const ssize_t written = ::write(file, sentence.data(), sentence.size());
    ::close(file);
    if (written == ssize_t(sentence.size())) std::rename(half.c_str(), path.c_str());
  }
  tell_fact("problem", sentence);
}

void Recorder::before_fork() {
  Recorder& here = instance();
  here.nvtx_lock_.lock();
  here.state_lock_.lock();
  here.spool_lock_.lock();
}

void Recorder::after_fork_in_parent() {
  Recorder& here = instance();
  here.spool_lock_.unlock();
  here.state_lock_.unlock();
  here.nvtx_lock_.unlock();
}

// The child has none of the parent's threads, and the driver refuses CUDA to it: it begins anew, without CUPTI.
void Recorder::after_fork_in_child() {
  Recorder& here = instance();
  here.spool_.abandon();
  here.is_inherited_ = here.is_inherited_ || here.cupti_.load() != nullptr;
  here.cupti_ = nullptr;
  if (here.control_ != nullptr) munmap(here.control_, sizeof(ControlPage));
  here.control_ = nullptr;
  here.has_thread_ = false;
  here.is_open_.store(false);
  here.is_recording_.store(false);
  here.has_settings_ = false;
  here.is_refused_ = false;
  here.only_range_depth_.store(0);
  here.spool_lock_.unlock();
  here.state_lock_.unlock();
  here.nvtx_lock_.unlock();
}

}  // namespace hprof

#define HPROF_EXPORT extern "C" __attribute__((visibility("default")))

// CUDA's driver calls it once, while it starts: this library's name is in CUDA_INJECTION64_PATH.
HPROF_EXPORT int InitializeInjection() {
  hprof::Recorder::instance().start_cupti();
  return 1;
}
