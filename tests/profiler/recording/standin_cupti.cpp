// A stand-in for libcupti: it has the functions that the recorder's library asks of CUPTI, and emits the records that a
// test chooses, laid out as the headers say. It behaves as CUPTI's documentation says: nothing that is not enabled is
// recorded, buffers are asked for when needed, a flush gives those whose records are all complete, a forced one gives
// all, and what finds no buffer is dropped and counted.

#include <cupti_activity.h>
#include <cupti_callbacks.h>
#include <cupti_version.h>

#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Buffer {
  uint8_t* memory;
  size_t size, used;
  unsigned incomplete;
};

std::recursive_mutex lock;
CUpti_BuffersCallbackRequestFunc request;
CUpti_BuffersCallbackCompleteFunc complete;
CUpti_CallbackFunc callback;
void* callback_data;
bool is_subscribed;
std::set<uint32_t> kinds, runtime_calls, driver_calls;
std::vector<Buffer> buffers;
size_t n_dropped;
uint64_t attributes[32];
unsigned n_held;  // buffers that the recorder has given and not got back

struct Call {
  CUpti_CallbackId id;
  const char* name;
};
constexpr Call kRuntime[] = {{13, "cudaLaunchKernel_v7000"}, {41, "cudaMemcpyAsync_v3020"}, {131, "cudaStreamSynchronize_v3020"}, {311, "cudaGraphLaunch_v10000"}};
constexpr Call kDriver[] = {{307, "cuLaunchKernel"}, {277, "cuMemcpyHtoDAsync_v2"}, {17, "cuCtxGetCurrent"}};

void hand_over(size_t at) {
  Buffer buffer = buffers[at];
  buffers.erase(buffers.begin() + long(at));
  --n_held;
  complete(nullptr, 0, buffer.memory, buffer.size, buffer.used);
}

// The whole of a record's bytes: the reader walks by kind.
size_t size_of(CUpti_ActivityKind kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(HPROF_KERNEL);
    case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(HPROF_MEMCPY);
    case CUPTI_ACTIVITY_KIND_MEMCPY2: return sizeof(HPROF_MEMCPY_PTOP);
    case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(HPROF_MEMSET);
    case CUPTI_ACTIVITY_KIND_GRAPH_TRACE: return sizeof(HPROF_GRAPH_TRACE);
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: return sizeof(HPROF_SYNCHRONIZATION);
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: return sizeof(CUpti_ActivityAPI);
    case CUPTI_ACTIVITY_KIND_MEMORY2: return sizeof(HPROF_MEMORY);
    case CUPTI_ACTIVITY_KIND_DEVICE: return sizeof(HPROF_DEVICE);
    case CUPTI_ACTIVITY_KIND_CONTEXT: return sizeof(HPROF_CONTEXT);
    case CUPTI_ACTIVITY_KIND_STREAM: return sizeof(CUpti_ActivityStream);
    default: return 0;
  }
}

template <typename Activity>
void emit(CUpti_ActivityKind kind, Activity record, bool is_complete = true) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  if (kinds.count(kind) == 0) return;
  record.kind = kind;
  if (buffers.empty() || buffers.back().used + sizeof record > buffers.back().size) {
    if (!buffers.empty() && buffers.back().incomplete == 0) hand_over(buffers.size() - 1);
    Buffer fresh{};
    size_t max_records = 0;
    request(&fresh.memory, &fresh.size, &max_records);
    if (fresh.memory == nullptr) {
      ++n_dropped;
      return;
    }
    ++n_held;
    buffers.push_back(fresh);
  }
  Buffer& buffer = buffers.back();
  std::memcpy(buffer.memory + buffer.used, &record, sizeof record);
  buffer.used += sizeof record;
  buffer.incomplete += is_complete ? 0 : 1;
}

// Names outlive the program's objects, as those of kernels do in their modules.
const char* kept(const char* name) {
  static auto* names = new std::set<std::string>();
  return names->insert(name).first->c_str();
}

template <typename Activity>
Activity blank() {
  Activity record;
  std::memset(static_cast<void*>(&record), 0, sizeof record);
  return record;
}

template <typename Activity>
Activity on_stream(uint32_t context, uint32_t stream, uint32_t correlation, uint64_t start, uint64_t end) {
  Activity record = blank<Activity>();
  record.contextId = context;
  record.streamId = stream;
  record.correlationId = correlation;
  record.start = start;
  record.end = end;
  return record;
}

}  // namespace

// ---- CUPTI's functions -------------------------------------------------------------------------------------------
EXPORT CUptiResult CUPTIAPI cuptiGetVersion(uint32_t* version) {
  const char* other = std::getenv("STANDIN_VERSION");
  *version = other != nullptr ? uint32_t(std::atoi(other)) : CUPTI_API_VERSION;
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult CUPTIAPI cuptiSubscribe(CUpti_SubscriberHandle* handle, CUpti_CallbackFunc function, void* data) {
  if (is_subscribed || std::getenv("STANDIN_TAKEN") != nullptr) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  is_subscribed = true;
  callback = function;
  callback_data = data;
  *handle = reinterpret_cast<CUpti_SubscriberHandle>(&is_subscribed);
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult CUPTIAPI cuptiUnsubscribe(CUpti_SubscriberHandle) {
  is_subscribed = false;
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult CUPTIAPI cuptiEnableCallback(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain, CUpti_CallbackId) { return CUPTI_SUCCESS; }
EXPORT CUptiResult CUPTIAPI cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t id, const char** name) {
  for (const Call& call : kRuntime)
    if (domain == CUPTI_CB_DOMAIN_RUNTIME_API && call.id == id) return *name = call.name, CUPTI_SUCCESS;
  for (const Call& call : kDriver)
    if (domain == CUPTI_CB_DOMAIN_DRIVER_API && call.id == id) return *name = call.name, CUPTI_SUCCESS;
  if (id < 400) return *name = "INVALID", CUPTI_SUCCESS;
  return CUPTI_ERROR_INVALID_PARAMETER;
}
EXPORT CUptiResult CUPTIAPI cuptiGetResultString(CUptiResult, const char** text) {
  *text = "CUPTI_ERROR_STANDIN";
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult CUPTIAPI cuptiGetTimestamp(uint64_t* now) {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  *now = uint64_t(time.tv_sec) * 1000000000u + uint64_t(time.tv_nsec);
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult CUPTIAPI cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc ask, CUpti_BuffersCallbackCompleteFunc give) {
  request = ask;
  complete = give;
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult CUPTIAPI cuptiActivityEnable(CUpti_ActivityKind kind) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  const char* refused = std::getenv("STANDIN_REFUSES");
  if (refused != nullptr && std::atoi(refused) == int(kind)) return CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
  kinds.insert(kind);
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult CUPTIAPI cuptiActivityDisable(CUpti_ActivityKind kind) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  kinds.erase(kind);
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult CUPTIAPI cuptiActivityEnableRuntimeApi(CUpti_CallbackId id, uint8_t on) {
  on ? (void)runtime_calls.insert(id) : (void)runtime_calls.erase(id);
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult CUPTIAPI cuptiActivityEnableDriverApi(CUpti_CallbackId id, uint8_t on) {
  on ? (void)driver_calls.insert(id) : (void)driver_calls.erase(id);
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult CUPTIAPI cuptiSetThreadIdType(CUpti_ActivityThreadIdType) { return CUPTI_SUCCESS; }
EXPORT CUptiResult CUPTIAPI cuptiActivitySetAttribute(CUpti_ActivityAttribute attribute, size_t* bytes, void* value) {
  std::memcpy(&attributes[attribute], value, *bytes);
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult CUPTIAPI cuptiActivityFlushPeriod(uint32_t) { return CUPTI_SUCCESS; }
EXPORT CUptiResult CUPTIAPI cuptiActivityEnableHWTrace(uint8_t) { return CUPTI_ERROR_NOT_SUPPORTED; }
EXPORT CUptiResult CUPTIAPI cuptiActivityFlushAll(uint32_t flag) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  for (size_t at = buffers.size(); at > 0; --at)
    if (flag == CUPTI_ACTIVITY_FLAG_FLUSH_FORCED || buffers[at - 1].incomplete == 0) hand_over(at - 1);
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult CUPTIAPI cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, CUpti_Activity** record) {
  uint8_t* next = buffer;
  if (*record != nullptr) next = reinterpret_cast<uint8_t*>(*record) + size_of((*record)->kind);
  if (next >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(next);
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult CUPTIAPI cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* dropped) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  *dropped = n_dropped;
  n_dropped = 0;
  return CUPTI_SUCCESS;
}

// ---- what a test tells it to have seen -----------------------------------------------------------------------------
EXPORT void standin_kernel(const char* name, uint32_t context, uint32_t stream, uint32_t correlation, uint64_t start, uint64_t end, uint64_t node) {
  if (node != 0 && kinds.count(CUPTI_ACTIVITY_KIND_GRAPH_TRACE) != 0) return;  // the graph is recorded as a whole
  auto record = on_stream<HPROF_KERNEL>(context, stream, correlation, start, end);
  record.name = kept(name);
  record.graphNodeId = node;
  emit(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, record, end != 0);
}
EXPORT void standin_kernels(const char* name, uint64_t count, uint64_t start) {
  for (uint64_t at = 0; at < count; ++at) {
    const uint64_t begin = start == 0 ? 0 : start + at * 1000, end = start == 0 ? 0 : begin + 500;  // 0: it never ends
    standin_kernel(name, 1, 7, uint32_t(at + 1), begin, end, 0);
  }
}
EXPORT void standin_copy(int kind, int source, int target, uint64_t bytes, uint32_t stream, uint32_t correlation, uint64_t start, uint64_t end) {
  auto record = on_stream<HPROF_MEMCPY>(1, stream, correlation, start, end);
  record.copyKind = uint8_t(kind);
  record.srcKind = uint8_t(source);
  record.dstKind = uint8_t(target);
  record.bytes = bytes;
  emit(CUPTI_ACTIVITY_KIND_MEMCPY, record);
}
EXPORT void standin_peer_copy(uint64_t bytes, uint32_t correlation, uint64_t start, uint64_t end) {
  auto record = on_stream<HPROF_MEMCPY_PTOP>(1, 9, correlation, start, end);
  record.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_PTOP;
  record.srcKind = record.dstKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  record.bytes = bytes;
  record.dstDeviceId = 1;
  emit(CUPTI_ACTIVITY_KIND_MEMCPY2, record);
}
EXPORT void standin_memset(uint64_t bytes, uint32_t correlation, uint64_t start, uint64_t end) {
  auto record = on_stream<HPROF_MEMSET>(1, 7, correlation, start, end);
  record.bytes = bytes;
  emit(CUPTI_ACTIVITY_KIND_MEMSET, record);
}
EXPORT void standin_graph(uint32_t graph, uint32_t correlation, uint64_t start, uint64_t end) {
  auto record = on_stream<HPROF_GRAPH_TRACE>(1, 7, correlation, start, end);
  record.graphId = graph;
  emit(CUPTI_ACTIVITY_KIND_GRAPH_TRACE, record);
}
EXPORT void standin_graph_node(int type) {
  CUpti_GraphData graph = blank<CUpti_GraphData>();
  graph.nodeType = CUgraphNodeType(type);
  CUpti_ResourceData resource = blank<CUpti_ResourceData>();
  resource.resourceDescriptor = &graph;
  if (is_subscribed) callback(callback_data, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, &resource);
}
EXPORT void standin_sync(int type, uint32_t stream, uint32_t correlation, uint64_t start, uint64_t end) {
  auto record = blank<HPROF_SYNCHRONIZATION>();
  record.type = CUpti_ActivitySynchronizationType(type);
  record.contextId = 1;
  record.streamId = stream;
  record.correlationId = correlation;
  record.start = start;
  record.end = end;
  emit(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, record);
}
EXPORT void standin_call(int is_driver, uint32_t id, uint32_t thread, uint32_t correlation, uint64_t start, uint64_t end) {
  const auto kind = is_driver ? CUPTI_ACTIVITY_KIND_DRIVER : CUPTI_ACTIVITY_KIND_RUNTIME;
  auto& asked = is_driver ? driver_calls : runtime_calls;
  if (kinds.count(kind) == 0 && asked.count(id) == 0) return;
  auto record = blank<CUpti_ActivityAPI>();
  record.cbid = id;
  record.threadId = thread;
  record.correlationId = correlation;
  record.start = start;
  record.end = end;
  const bool was_off = kinds.insert(kind).second;
  emit(kind, record);
  if (was_off) kinds.erase(kind);
}
EXPORT void standin_memory(int operation, int kind, uint64_t address, uint64_t bytes, uint64_t at) {
  auto record = blank<HPROF_MEMORY>();
  record.memoryOperationType = CUpti_ActivityMemoryOperationType(operation);
  record.memoryKind = CUpti_ActivityMemoryKind(kind);
  record.address = address;
  record.bytes = bytes;
  record.timestamp = at;
  record.contextId = 1;
  emit(CUPTI_ACTIVITY_KIND_MEMORY2, record);
}
EXPORT void standin_device(const char* name, uint64_t bytes) {
  auto device = blank<HPROF_DEVICE>();
  device.name = kept(name);
  device.globalMemorySize = bytes;
  device.globalMemoryBandwidth = 4800000000;  // kB/s
  device.computeCapabilityMajor = 9;
  device.numMultiprocessors = 132;
  device.numMemcpyEngines = 3;
  emit(CUPTI_ACTIVITY_KIND_DEVICE, device);
  auto context = blank<HPROF_CONTEXT>();
  context.contextId = 1;
  context.nullStreamId = 7;
  emit(CUPTI_ACTIVITY_KIND_CONTEXT, context);
  auto stream = blank<CUpti_ActivityStream>();
  stream.contextId = 1;
  stream.streamId = 14;
  stream.priority = uint32_t(-5);
  stream.flag = CUPTI_ACTIVITY_STREAM_CREATE_FLAG_NON_BLOCKING;
  emit(CUPTI_ACTIVITY_KIND_STREAM, stream);
}
EXPORT uint64_t standin_attribute(int number) { return attributes[number]; }
EXPORT unsigned standin_held_buffers() { return n_held; }
EXPORT int standin_is_enabled(int kind) { return kinds.count(uint32_t(kind)) != 0; }
