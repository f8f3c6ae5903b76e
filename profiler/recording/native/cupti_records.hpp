// CUPTI's records as the spool's. Compiled against the headers of one CUPTI; build.py names the newest layout of each
// record in them (HPROF_KERNEL, ...), which is what that CUPTI writes. Only fields that CUPTI 12.0 had already are
// read, and newer layouts append: a libcupti that is older or newer than the headers, of the same major, reads right.
#pragma once

#include <cupti_activity.h>
#include <cupti_callbacks.h>
#include <cupti_version.h>

#include <cstddef>

#include "recorder.hpp"

namespace hprof {
namespace HPROF_NAMESPACE {

// The names of the runtime's and the driver's calls, by CUPTI's number of each.
class CallNames {
 public:
  void add(bool is_driver, uint32_t call, const char* name) {
    auto& names = names_[is_driver];
    if (names.size() <= call) names.resize(call + 1);
    names[call] = name;
  }
  const std::vector<std::string>& of(bool is_driver) const { return names_[is_driver]; }
  std::string_view name(bool is_driver, uint32_t call) const {
    const auto& names = names_[is_driver];
    return call < names.size() ? std::string_view(names[call]) : std::string_view();
  }

 private:
  std::vector<std::string> names_[2];
};

// What all device work has.
template <typename Activity>
Record on_stream(RecordType type, const Activity& activity) {
  Record record;
  record.type = type;
  record.start = activity.start;
  record.end = activity.end;
  record.device = activity.deviceId;
  record.context = activity.contextId;
  record.stream = activity.streamId;
  record.correlation = activity.correlationId;
  return record;
}

// What work has that may be a node of a graph.
template <typename Activity>
Record node_of_graph(RecordType type, const Activity& activity) {
  Record record = on_stream(type, activity);
  record.id = activity.graphNodeId;
  record.extra = activity.graphId;
  return record;
}

template <typename Activity>
Record any_copy(RecordType type, const Activity& copy) {
  Record record = node_of_graph(type, copy);
  record.kind = copy.copyKind;
  record.src_kind = copy.srcKind;
  record.dst_kind = copy.dstKind;
  record.bytes = copy.bytes;
  return record;
}

inline Record peer_copy(const HPROF_MEMCPY_PTOP& copy) {
  Record record = any_copy(kPeerCopy, copy);
  record.thread = copy.srcDeviceId;
  record.extra = copy.dstDeviceId;
  return record;
}

inline Record kernel(const HPROF_KERNEL& kernel, Spool& spool) {
  Record record = node_of_graph(kKernel, kernel);
  record.name = spool.kernel_name(kernel.name);
  return record;
}

inline Record memset(const HPROF_MEMSET& memset) {
  Record record = node_of_graph(kMemset, memset);
  record.dst_kind = uint8_t(memset.memoryKind);
  record.bytes = memset.bytes;
  return record;
}

inline Record graph_launch(const HPROF_GRAPH_TRACE& graph) {
  Record record = on_stream(kGraph, graph);
  record.extra = graph.graphId;
  return record;
}

inline Record synchronisation(const HPROF_SYNCHRONIZATION& sync) {
  Record record;
  record.type = kSync;
  record.kind = uint8_t(sync.type);
  record.start = sync.start;
  record.end = sync.end;
  record.context = sync.contextId;
  record.stream = sync.streamId;
  record.correlation = sync.correlationId;
  record.extra = sync.cudaEventId;
  return record;
}

inline Record call(const CUpti_ActivityAPI& call, Spool& spool, const CallNames& calls) {
  Record record;
  record.type = kCall;
  record.kind = call.kind == CUPTI_ACTIVITY_KIND_DRIVER;
  record.name = spool.text(calls.name(record.kind == 1, uint32_t(call.cbid)));
  record.start = call.start;
  record.end = call.end;
  record.correlation = call.correlationId;
  record.thread = call.threadId;
  record.extra = call.returnValue;
  return record;
}

inline Record allocation(const HPROF_MEMORY& memory) {
  Record record;
  record.type = kMemory;
  record.kind = uint8_t(memory.memoryOperationType);
  record.src_kind = uint8_t(memory.memoryKind);
  record.start = memory.timestamp;
  record.bytes = memory.bytes;
  record.id = memory.address;
  record.device = memory.deviceId;
  record.context = memory.contextId;
  record.stream = memory.streamId;
  record.correlation = memory.correlationId;
  return record;
}

inline Record device(const HPROF_DEVICE& device, Spool& spool) {
  Record record;
  record.type = kDevice;
  record.name = spool.text(device.name != nullptr ? device.name : "");
  record.bytes = device.globalMemorySize;
  record.id = device.globalMemoryBandwidth;
  record.device = device.id;
  record.context = device.computeCapabilityMajor;
  record.stream = device.computeCapabilityMinor;
  record.correlation = device.numMemcpyEngines;
  record.extra = device.numMultiprocessors;
  return record;
}

inline Record context(const HPROF_CONTEXT& context) {
  Record record;
  record.type = kContext;
  record.device = context.deviceId;
  record.context = context.contextId;
  record.stream = context.nullStreamId;
  return record;
}

inline Record stream(const CUpti_ActivityStream& stream) {
  Record record;
  record.type = kStream;
  record.kind = uint8_t(stream.flag);
  record.context = stream.contextId;
  record.stream = stream.streamId;
  record.extra = stream.priority;
  return record;
}

template <typename Activity>
const Activity& as(const CUpti_Activity* any) {
  return *reinterpret_cast<const Activity*>(any);
}

// Type 0 where the spool has no use for the record.
inline Record converted(const CUpti_Activity* any, Spool& spool, const CallNames& calls) {
  switch (any->kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      return kernel(as<HPROF_KERNEL>(any), spool);
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return any_copy(kCopy, as<HPROF_MEMCPY>(any));
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
      return peer_copy(as<HPROF_MEMCPY_PTOP>(any));
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return memset(as<HPROF_MEMSET>(any));
    case CUPTI_ACTIVITY_KIND_GRAPH_TRACE:
      return graph_launch(as<HPROF_GRAPH_TRACE>(any));
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION:
      return synchronisation(as<HPROF_SYNCHRONIZATION>(any));
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER:
      return call(as<CUpti_ActivityAPI>(any), spool, calls);
    case CUPTI_ACTIVITY_KIND_MEMORY2:
      return allocation(as<HPROF_MEMORY>(any));
    case CUPTI_ACTIVITY_KIND_DEVICE:
      return device(as<HPROF_DEVICE>(any), spool);
    case CUPTI_ACTIVITY_KIND_CONTEXT:
      return context(as<HPROF_CONTEXT>(any));
    case CUPTI_ACTIVITY_KIND_STREAM:
      return stream(as<CUpti_ActivityStream>(any));
    default:
      return {};
  }
}

}  // namespace HPROF_NAMESPACE
}  // namespace hprof
