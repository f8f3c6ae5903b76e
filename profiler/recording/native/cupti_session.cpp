// Starts and stops CUPTI in this process, and takes its buffers. Compiled once for each set of CUPTI's headers, each
// time in a namespace of its own (HPROF_NAMESPACE); nothing is linked with libcupti: it is found when CUDA starts.

#include "cupti_records.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "trial.hpp"

namespace hprof {
namespace HPROF_NAMESPACE {
namespace {

constexpr std::size_t kBufferKib = 256;              // small ones fill, and so complete, soon
constexpr std::size_t kMaxBufferBytes = 128u << 20;  // of buffers that CUPTI holds; beyond it CUPTI drops and counts

constexpr uint32_t kMaxCalls = 4096, kMaxGap = 64;  // CUPTI's numbers of calls, and of those that have no name

// Always on: who is who. The rest only while recording.
constexpr CUpti_ActivityKind kFacts[] = {
    CUPTI_ACTIVITY_KIND_DEVICE,
    CUPTI_ACTIVITY_KIND_CONTEXT,
    CUPTI_ACTIVITY_KIND_STREAM,
};
struct WorkKind {
  const char* left_out_by;  // a trial's name
  CUpti_ActivityKind kind;
};
constexpr WorkKind kWork[] = {
    {"no_kernels", CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL},
    {"no_copies", CUPTI_ACTIVITY_KIND_MEMCPY},
    {"no_copies", CUPTI_ACTIVITY_KIND_MEMCPY2},
    {"no_memsets", CUPTI_ACTIVITY_KIND_MEMSET},
    {"no_waits", CUPTI_ACTIVITY_KIND_SYNCHRONIZATION},
    {"no_graphs", CUPTI_ACTIVITY_KIND_GRAPH_TRACE},
};
// What a trial leaves out in turn, between turns that leave out nothing: what each costs then shows in one process.
constexpr const char* kTurns[] = {
    "no_waits", "no_copies", "no_memsets", "no_kernels", "no_kernels,no_graphs",
    "no_kernels,no_graphs,no_copies,no_memsets,no_waits",
};
// Also on while paused, as what is freed later was allocated now.
constexpr CUpti_ActivityKind kMemoryKind = CUPTI_ACTIVITY_KIND_MEMORY2;

// The calls that launch work: with their thread and time, ranges find their work. All other calls cost for nothing.
constexpr const char* kCalls[] = {"Launch", "Memcpy", "Memset", "GraphLaunch", "MemPrefetch"};

// By number, as the headers of CUPTI 12 name fewer of them.
struct Attribute {
  const char* name;  // a trial's
  int number;        // CUpti_ActivityAttribute
  bool is_byte;      // a uint8_t, else a size_t
};
constexpr Attribute kAttributes[] = {
    {"device_bytes", 0, false}, {"device_pool", 2, false}, {"zeroed", 5, true},
    {"device_buffers", 6, false}, {"pinned", 8, true}, {"per_thread", 9, true},
};

struct Functions {
  decltype(&::cuptiSubscribe) subscribe = nullptr;
  decltype(&::cuptiUnsubscribe) unsubscribe = nullptr;
  decltype(&::cuptiEnableCallback) enable_callback = nullptr;
  decltype(&::cuptiGetCallbackName) get_callback_name = nullptr;
  decltype(&::cuptiGetResultString) get_result_string = nullptr;
  decltype(&::cuptiGetTimestamp) get_timestamp = nullptr;
  decltype(&::cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&::cuptiActivityEnable) enable = nullptr;
  decltype(&::cuptiActivityDisable) disable = nullptr;
  decltype(&::cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&::cuptiActivityGetNextRecord) get_next_record = nullptr;
  decltype(&::cuptiActivityGetNumDroppedRecords) get_num_dropped = nullptr;
  decltype(&::cuptiSetThreadIdType) set_thread_id_type = nullptr;
  decltype(&::cuptiActivityEnableRuntimeApi) enable_runtime_call = nullptr;  // may lack: CUPTI of CUDA 12.0 to 12.x
  decltype(&::cuptiActivityEnableDriverApi) enable_driver_call = nullptr;
  decltype(&::cuptiActivitySetAttribute) set_attribute = nullptr;  // the last three for trials alone
  decltype(&::cuptiActivityFlushPeriod) flush_period = nullptr;
  CUptiResult (*enable_hw_trace)(uint8_t) = nullptr;  // cuptiActivityEnableHWTrace, of CUDA 12.8

  // Gives the name of a function that is missing, null where all are there.
  const char* find(void* library) {
    const char* missing = nullptr;
    auto take = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr) missing = name;
    };
    take(subscribe, "cuptiSubscribe");
    take(unsubscribe, "cuptiUnsubscribe");
    take(enable_callback, "cuptiEnableCallback");
    take(get_callback_name, "cuptiGetCallbackName");
    take(get_result_string, "cuptiGetResultString");
    take(get_timestamp, "cuptiGetTimestamp");
    take(register_callbacks, "cuptiActivityRegisterCallbacks");
    take(enable, "cuptiActivityEnable");
    take(disable, "cuptiActivityDisable");
    take(flush_all, "cuptiActivityFlushAll");
    take(get_next_record, "cuptiActivityGetNextRecord");
    take(get_num_dropped, "cuptiActivityGetNumDroppedRecords");
    const char* needed = missing;
    take(set_thread_id_type, "cuptiSetThreadIdType");
    take(enable_runtime_call, "cuptiActivityEnableRuntimeApi");
    take(enable_driver_call, "cuptiActivityEnableDriverApi");
    take(set_attribute, "cuptiActivitySetAttribute");
    take(flush_period, "cuptiActivityFlushPeriod");
    take(enable_hw_trace, "cuptiActivityEnableHWTrace");
    return needed;
  }
};

class Session final : public CuptiSession {
 public:
  std::string begin(void* library, const Wanted& wanted) override {
    if (const char* missing = cupti_.find(library))
      return std::string("this libcupti lacks ") + missing + ": it is too old, take that of CUDA 12 or later";
    wanted_ = wanted;
    for (auto& made : nodes_) made.store(0);
    if (calls_.of(false).empty()) name_calls();
    try_attributes();
    if (trial_.is_on("no_cupti")) return {};
    std::string wrong = subscribe();
    if (wrong.empty()) begin_facts();
    return wrong;
  }

  void record(bool on) override {
    for (const WorkKind& work : kWork) {
      if (!is_wanted(work)) continue;
      on ? enable(work.kind) : disable(work.kind);
    }
  }

  const char* take_turn(unsigned turn) override {
    const char* left_out = turn % 2 == 0 ? "" : kTurns[turn / 2 % std::size(kTurns)];
    for (const WorkKind& work : kWork) {
      if (!is_wanted(work)) continue;
      std::strstr(left_out, work.left_out_by) == nullptr ? enable(work.kind) : disable(work.kind);
    }
    return left_out;
  }

  void flush(bool also_incomplete) override {
    cupti_.flush_all(also_incomplete ? CUPTI_ACTIVITY_FLAG_FLUSH_FORCED : 0);
  }

  uint64_t timestamp_ns() override {
    uint64_t now = 0;
    return cupti_.get_timestamp(&now) == CUPTI_SUCCESS ? now : Recorder::instance().now_realtime_ns();
  }

  uint64_t graph_nodes(unsigned type) const override { return nodes_[type].load(std::memory_order_relaxed); }

 private:
  // Gives a sentence about what is wrong, if anything.
  std::string subscribe() {
    const bool goes_without = trial_.is_on("no_subscriber");
    const CUptiResult subscribed = goes_without ? CUPTI_SUCCESS : cupti_.subscribe(&subscriber_, &on_callback, this);
    if (subscribed == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED || subscribed == CUPTI_ERROR_MAX_LIMIT_REACHED)
      return "another profiler holds CUPTI in this process already (nsys, torch.profiler, a debugger), and CUPTI "
             "admits one: end it, or record without it";
    if (subscribed != CUPTI_SUCCESS) return said("CUPTI cannot be subscribed to", subscribed);
    if (cupti_.set_thread_id_type != nullptr && !trial_.is_on("no_thread_ids")) {
      cupti_.set_thread_id_type(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM);
    }
    const CUptiResult registered = cupti_.register_callbacks(&give_buffer, &take_buffer);
    if (registered == CUPTI_SUCCESS) return {};
    if (!goes_without) cupti_.unsubscribe(subscriber_);
    return said("CUPTI takes no buffers", registered);
  }

  // What is on from here to the end, also while paused.
  void begin_facts() {
    if (subscriber_ != nullptr && !trial_.is_on("no_nodes")) {
      cupti_.enable_callback(1, subscriber_, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED);
    }
    if (!trial_.is_on("no_facts")) {
      for (CUpti_ActivityKind kind : kFacts) enable(kind);
    }
    if (wanted_.memory) enable(kMemoryKind);
    if (wanted_.calls) record_calls();
  }

  void enable(CUpti_ActivityKind kind) {
    const CUptiResult result = cupti_.enable(kind);
    if (result == CUPTI_SUCCESS) return;
    const unsigned bit = unsigned(kind) % 64;
    if (told_ >> bit & 1u) return;  // once a kind
    told_ |= uint64_t(1) << bit;
    const std::string what = "CUPTI does not record activity kind " + std::to_string(int(kind));
    Recorder::instance().tell_problem(said(what.c_str(), result));
  }

  void disable(CUpti_ActivityKind kind) { cupti_.disable(kind); }

  bool is_wanted(const WorkKind& work) const {
    if (work.kind == CUPTI_ACTIVITY_KIND_SYNCHRONIZATION && !wanted_.waits) return false;
    if (work.kind == CUPTI_ACTIVITY_KIND_GRAPH_TRACE && wanted_.graph_nodes) return false;
    return !trial_.is_on(work.left_out_by);
  }

  // Attributes of CUPTI that a trial sets; one that is refused is told.
  void try_attributes() {
    for (const Attribute& attribute : kAttributes) {
      if (!trial_.has(attribute.name)) continue;
      std::size_t wide = trial_.number(attribute.name, 0), bytes = attribute.is_byte ? 1 : sizeof wide;
      uint8_t narrow = uint8_t(wide);
      void* value = attribute.is_byte ? static_cast<void*>(&narrow) : &wide;
      const auto number = CUpti_ActivityAttribute(attribute.number);
      tell_refused(attribute.name, tried(cupti_.set_attribute, number, &bytes, value));
    }
    const auto worker_ms = uint32_t(trial_.number("worker_ms", 0));
    if (worker_ms != 0) tell_refused("worker_ms", tried(cupti_.flush_period, worker_ms));
    if (trial_.is_on("hes")) tell_refused("hes", tried(cupti_.enable_hw_trace, uint8_t(1)));
  }

  // What a function says that this libcupti may lack.
  template <typename Function, typename... Arguments>
  static CUptiResult tried(Function function, Arguments... arguments) {
    return function != nullptr ? function(arguments...) : CUPTI_ERROR_NOT_SUPPORTED;
  }

  void tell_refused(const char* name, CUptiResult result) {
    if (result == CUPTI_SUCCESS) return;
    Recorder::instance().tell_problem(said((std::string("CUPTI refuses ") + name).c_str(), result));
  }

  void name_calls() {
    for (bool is_driver : {false, true}) {
      const auto domain = is_driver ? CUPTI_CB_DOMAIN_DRIVER_API : CUPTI_CB_DOMAIN_RUNTIME_API;
      for (uint32_t call = 1, unknown = 0; call < kMaxCalls && unknown < kMaxGap; ++call) {
        const char* name = nullptr;
        const bool is_known = cupti_.get_callback_name(domain, call, &name) == CUPTI_SUCCESS && name != nullptr;
        unknown = is_known ? 0 : unknown + 1;
        if (is_known) calls_.add(is_driver, call, name);
      }
    }
  }

  // From the start, and while paused too: on an H200 (CUPTI 13.0) calls that were asked for later left no records. Those
  // of a pause are dropped when they come.
  void record_calls() {
    if (cupti_.enable_runtime_call != nullptr && cupti_.enable_driver_call != nullptr) {
      if (!trial_.is_on("no_runtime_calls")) record_calls(false, "cuda", cupti_.enable_runtime_call);
      if (!trial_.is_on("no_driver_calls")) record_calls(true, "cu", cupti_.enable_driver_call);
    } else {
      enable(CUPTI_ACTIVITY_KIND_RUNTIME);
    }
  }

  template <typename EnableCall>
  void record_calls(bool is_driver, const std::string& prefix, EnableCall enable_call) {
    const auto& names = calls_.of(is_driver);
    for (uint32_t call = 0; call < names.size(); ++call) {
      const auto launches = [&](const char* start) { return names[call].rfind(prefix + start, 0) == 0; };
      if (std::any_of(std::begin(kCalls), std::end(kCalls), launches)) enable_call(call, 1);
    }
  }

  std::string said(const char* what, CUptiResult result) {
    const char* text = nullptr;
    if (cupti_.get_result_string(result, &text) != CUPTI_SUCCESS || text == nullptr) text = "no reason given";
    return std::string(what) + ": " + text + " (" + std::to_string(int(result)) + ")";
  }

  static void CUPTIAPI on_callback(void* self, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
    if (domain != CUPTI_CB_DOMAIN_RESOURCE || id != CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED || data == nullptr) return;
    const auto* resource = static_cast<const CUpti_ResourceData*>(data);
    const auto* graph = static_cast<const CUpti_GraphData*>(resource->resourceDescriptor);
    if (graph == nullptr || unsigned(graph->nodeType) >= kNodeTypes) return;
    static_cast<Session*>(self)->nodes_[unsigned(graph->nodeType)].fetch_add(1, std::memory_order_relaxed);
  }

  static void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* max_records);
  static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t size, size_t valid);

  Functions cupti_;
  const Trial& trial_ = Trial::instance();
  CUpti_SubscriberHandle subscriber_ = nullptr;
  Wanted wanted_;
  CallNames calls_;
  uint64_t told_ = 0;
  const std::size_t buffer_bytes_ = trial_.number("buffer_kib", kBufferKib) << 10;
  std::atomic<std::size_t> held_bytes_{0};
  std::atomic<uint64_t> nodes_[kNodeTypes] = {};
};

Session& session() {
  static auto* made = new Session();  // never destroyed: CUPTI may call until the process is gone
  return *made;
}

void CUPTIAPI Session::give_buffer(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = nullptr;
  *size = *max_records = 0;
  Session& here = session();
  const std::size_t bytes = here.buffer_bytes_;
  if (here.held_bytes_.load() + bytes > kMaxBufferBytes) return;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, bytes));
  if (*buffer == nullptr) return;
  if (here.trial_.is_on("zeroed")) std::memset(*buffer, 0, bytes);
  here.held_bytes_.fetch_add(bytes);
  *size = bytes;
}

void CUPTIAPI Session::take_buffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t, size_t valid) {
  Session& here = session();
  std::vector<const CUpti_Activity*> activities;
  CUpti_Activity* activity = nullptr;
  while (buffer != nullptr && valid > 0 && here.cupti_.get_next_record(buffer, valid, &activity) == CUPTI_SUCCESS) {
    activities.push_back(activity);
  }
  size_t dropped = 0;
  if (here.cupti_.get_num_dropped(context, stream, &dropped) != CUPTI_SUCCESS) dropped = 0;
  Recorder::instance().with_spool([&](Spool& spool) {
    for (const CUpti_Activity* one : activities) {
      const Record record = converted(one, spool, here.calls_);
      const bool is_of_pause = record.type == kCall && !Recorder::instance().was_recording(record.start);
      if (record.type != 0 && !is_of_pause) spool.append(record);
    }
    spool.append_lost(dropped, kDroppedByCupti);
    spool.flush();
  });
  if (buffer == nullptr) return;
  std::free(buffer);
  here.held_bytes_.fetch_sub(here.buffer_bytes_);
}

CuptiBuild build{CUPTI_API_VERSION, &session(), nullptr};
const bool is_added = [] {
  build.next = cupti_builds();
  cupti_builds() = &build;
  return true;
}();

}  // namespace
}  // namespace HPROF_NAMESPACE
}  // namespace hprof
