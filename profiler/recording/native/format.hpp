// The spool format, version 1, and the control page: what the library writes and shares with hprof.
// docs/recording.md describes both; profiler/importers/cupti_spool/spool.py reads the one,
// profiler/recording/control.py writes the other. All integers are little-endian.
#pragma once

#include <atomic>
#include <cstdint>

namespace hprof {

constexpr uint32_t kFormatVersion = 1;
constexpr uint32_t kNone = 0xFFFFFFFFu;  // no device, context or stream

struct FileHeader {
  char magic[8];  // "hprofspl"
  uint32_t version;
  uint32_t record_bytes;
  uint32_t header_bytes;
  uint32_t process;
  uint32_t parent;
  uint32_t reserved;
  uint64_t realtime_ns;   // CLOCK_REALTIME when the file was opened: the clock of all times here
  uint64_t monotonic_ns;  // CLOCK_MONOTONIC at the same instant
  uint64_t unused[2];
};
static_assert(sizeof(FileHeader) == 64, "the header is 64 bytes");

// A chunk is this header and its payload: `count` records, or `count` strings.
struct ChunkHeader {
  uint32_t magic;
  uint32_t kind;  // kRecords or kStrings
  uint32_t payload_bytes;
  uint32_t count;
};
static_assert(sizeof(ChunkHeader) == 16, "a chunk's header is 16 bytes");
constexpr uint32_t kChunkMagic = 0x316B6863u;  // "chk1"
constexpr uint32_t kRecords = 1;
constexpr uint32_t kStrings = 2;

// A string is this header and its UTF-8 bytes, padded to 8. Ids begin at 1; 0 is no string.
struct StringHeader {
  uint32_t id;
  uint32_t length;
};

enum RecordType : uint8_t {
  kKernel = 1,
  kCopy = 2,
  kPeerCopy = 3,
  kMemset = 4,
  kGraph = 5,
  kSync = 6,
  kCall = 7,
  kRangePush = 8,
  kRangePop = 9,
  kRangeStart = 10,
  kRangeEnd = 11,
  kMark = 12,
  kMemory = 13,
  kDevice = 14,
  kContext = 15,
  kStream = 16,
  kClock = 17,
  kLost = 18,
  kState = 19,
  kFact = 20,
  kGraphNodes = 21,
  kEnd = 22,
  kDomain = 23,
};

// One size for every type, so that a reader takes a chunk as an array. What a type does not name is 0, or kNone for
// device, context and stream. The table of docs/recording.md says what each type puts where.
struct Record {
  uint8_t type = 0;
  uint8_t kind = 0;      // copy kind, sync type, 0 runtime or 1 driver, memory operation, payload type, node type
  uint8_t src_kind = 0;  // CUpti_ActivityMemoryKind
  uint8_t dst_kind = 0;
  uint32_t name = 0;  // string id
  uint64_t start = 0;
  uint64_t end = 0;
  uint64_t bytes = 0;
  uint64_t id = 0;  // graph node, address or payload
  uint32_t device = kNone;
  uint32_t context = kNone;
  uint32_t stream = kNone;
  uint32_t correlation = 0;
  uint32_t thread = 0;
  uint32_t extra = 0;  // graph, domain, peer device or value string
};
static_assert(sizeof(Record) == 64, "a record is 64 bytes");

// Why something is missing, as kLost and kState name it.
constexpr const char* kDroppedByCupti = "dropped by CUPTI";
constexpr const char* kLimitReached = "limit reached";
constexpr const char* kDiskFull = "disk full";
constexpr const char* kNamesLost = "names beyond the table's limit";

enum StateKind : uint8_t { kBegan = 1, kPaused = 2 };

// A file of one page that hprof and every recorded process map: how they are told to start and stop, and what they
// have written together. Times are CLOCK_MONOTONIC, which all processes of a machine share.
struct ControlPage {
  char magic[8];  // "hprofctl"
  uint32_t version;
  std::atomic<uint32_t> paused;
  std::atomic<uint64_t> from_ns;   // 0: at once
  std::atomic<uint64_t> until_ns;  // 0: no end
  std::atomic<uint64_t> max_bytes;
  std::atomic<uint64_t> written_bytes;  // by all processes
  std::atomic<uint32_t> full;           // 1: max_bytes is reached, 2: the disk is full
  std::atomic<uint32_t> finished;       // hprof has left: nobody waits for what comes now
};
static_assert(sizeof(std::atomic<uint64_t>) == 8 && std::atomic<uint64_t>::is_always_lock_free, "shared as it lies");

}  // namespace hprof
