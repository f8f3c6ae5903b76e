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

// Type 0 where the spool has no use for the record.
inline Record converted(const CUpti_Activity* any, Spool& spool, const CallNames& calls) {
  switch (any->kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& kernel = *reinterpret_cast<const HPROF_KERNEL*>(any);
      Record record = on_stream(kKernel, kernel);
      record.name = spool.kernel_name(kernel.name);
      record.id = kernel.graphNodeId;
      record.extra = kernel.graphId;
      return record;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& copy = *reinterpret_cast<const HPROF_MEMCPY*>(any);
      Record record = on_stream(kCopy, copy);
      record.kind = copy.copyKind;
      record.src_kind = copy.srcKind;
      record.dst_kind = copy.dstKind;
      record.bytes = copy.bytes;
      record.id = copy.graphNodeId;
      record.extra = copy.graphId;
      return record;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2: {
      const auto& copy = *reinterpret_cast<const HPROF_MEMCPY_PTOP*>(any);
      Record record = on_stream(kPeerCopy, copy);
      record.kind = copy.copyKind;
      record.src_kind = copy.srcKind;
      record.dst_kind = copy.dstKind;
      record.bytes = copy.bytes;
      record.id = copy.graphNodeId;
      record.thread = copy.srcDeviceId;
      record.extra = copy.dstDeviceId;
      return record;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto& memset = *reinterpret_cast<const HPROF_MEMSET*>(any);
      Record record = on_stream(kMemset, memset);
      record.dst_kind = uint8_t(memset.memoryKind);
      record.bytes = memset.bytes;
      record.id = memset.graphNodeId;
      record.extra = memset.graphId;
      return record;
    }
    case CUPTI_ACTIVITY_KIND_GRAPH_TRACE: {
      const auto& graph = *reinterpret_cast<const HPROF_GRAPH_TRACE*>(any);
      Record record = on_stream(kGraph, graph);
      record.extra = graph.graphId;
      return record;
    }
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: {
      const auto& sync = *reinterpret_cast<const HPROF_SYNCHRONIZATION*>(any);
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
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: {
      const auto& call = *reinterpret_cast<const CUpti_ActivityAPI*>(any);
      Record record;
      record.type = kCall;
      record.kind = any->kind == CUPTI_ACTIVITY_KIND_DRIVER;
      record.name = spool.text(calls.name(record.kind == 1, uint32_t(call.cbid)));
      record.start = call.start;
      record.end = call.end;
      record.correlation = call.correlationId;
      record.thread = call.threadId;
      record.extra = call.returnValue;
      return record;
    }
    case CUPTI_ACTIVITY_KIND_MEMORY2: {
      const auto& memory = *reinterpret_cast<const HPROF_MEMORY*>(any);
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
    case CUPTI_ACTIVITY_KIND_DEVICE: {
      const auto& device = *reinterpret_cast<const HPROF_DEVICE*>(any);
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
    case CUPTI_ACTIVITY_KIND_CONTEXT: {
      const auto& context = *reinterpret_cast<const HPROF_CONTEXT*>(any);
      Record record;
      record.type = kContext;
      record.device = context.deviceId;
      record.context = context.contextId;
      record.stream = context.nullStreamId;
      return record;
    }
    case CUPTI_ACTIVITY_KIND_STREAM: {
      const auto& stream = *reinterpret_cast<const CUpti_ActivityStream*>(any);
      Record record;
      record.type = kStream;
      record.kind = uint8_t(stream.flag);
      record.context = stream.contextId;
      record.stream = stream.streamId;
      record.extra = stream.priority;
      return record;
    }
    default:
      return {};
  }
}

}  // namespace HPROF_NAMESPACE
}  // namespace hprof
