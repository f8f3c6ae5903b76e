// NVTX ranges and marks, taken from the program's own NVTX: this library's name is in NVTX_INJECTION64_PATH.
//
// The tables below are NVTX's binary interface, which has been the same since its version 3 (nvtxTypes.h,
// nvtxEventAttributes_v2): stated here, so that no NVTX header is needed.

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "recorder.hpp"

namespace hprof {
namespace {

struct EventAttributes {
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type, reserved;
  uint64_t payload;
  int32_t message_type;
  union Message {
    const char* ascii;
    const wchar_t* wide;
    const std::string* registered;  // what our own register function gave
  } message;
};
static_assert(sizeof(EventAttributes) == 48, "nvtxEventAttributes_v2 is 48 bytes");
enum MessageType : int32_t { kAscii = 1, kWide = 2, kRegistered = 3 };

using Function = void (*)();
struct CallbackTable {
  std::size_t struct_size;
  int (*get_module)(int module, Function*** table, unsigned* size);
};
constexpr uint32_t kCallbacks = 1;
constexpr int kCore = 1, kCore2 = 5;

struct Domain {
  uint32_t number;  // 0 is the default domain's
  std::string name;
  std::atomic<uint32_t> told_in{0};  // the spool, by Recorder::generation, that has its name
};

std::string narrow(const wchar_t* text) {
  std::string utf8;
  for (; text != nullptr && *text != 0; ++text) {
    const uint32_t code = uint32_t(*text);
    if (code < 0x80) {
      utf8 += char(code);
    } else if (code < 0x800) {
      utf8 += {char(0xC0 | code >> 6), char(0x80 | (code & 0x3F))};
    } else if (code < 0x10000) {
      utf8 += {char(0xE0 | code >> 12), char(0x80 | (code >> 6 & 0x3F)), char(0x80 | (code & 0x3F))};
    } else {
      utf8 += {char(0xF0 | code >> 18), char(0x80 | (code >> 12 & 0x3F)), char(0x80 | (code >> 6 & 0x3F)),
               char(0x80 | (code & 0x3F))};
    }
  }
  return utf8;
}

std::string_view shown(const char* text) { return text == nullptr ? std::string_view() : std::string_view(text); }

uint32_t thread_id() {
  static thread_local const uint32_t id = uint32_t(syscall(SYS_gettid));
  return id;
}

// What a process keeps for good, as domains and registered strings are kept by the program.
struct Registry {
  std::vector<Domain*> domains;
  std::vector<uint64_t> only_ranges;  // open start/end ranges of the name that --only-range gives
  uint64_t next_range = 1;
};
Registry& registry() {  // under the recorder's nvtx_lock
  static auto* made = new Registry();
  return *made;
}

// The ranges that this thread has pushed, where one of them may end the recording.
struct Pushed {
  uint32_t domain;
  bool is_only_range;
};
thread_local std::vector<Pushed> pushed;

struct Event {
  std::string_view name;
  const EventAttributes* attributes = nullptr;
};

void append(RecordType type, uint32_t domain, const Event& event, uint64_t range_id) {
  Recorder& recorder = Recorder::instance();
  const uint64_t now = recorder.now_ns();
  recorder.append([&](Spool& spool) {
    Record record;
    record.type = type;
    record.start = now;
    record.thread = thread_id();
    record.extra = domain;
    record.bytes = range_id;
    record.name = spool.text(event.name);
    if (event.attributes != nullptr) {
      record.kind = uint8_t(event.attributes->payload_type);
      record.id = event.attributes->payload;
      record.stream = event.attributes->category;
      record.context = event.attributes->color_type != 0 ? event.attributes->color : kNone;
    }
    return record;
  });
}

// A spool may begin long after a domain was made: its name comes before the domain's first event in each.
uint32_t number_of(Domain* domain) {
  if (domain == nullptr) return 0;
  Recorder& recorder = Recorder::instance();
  const uint32_t spool = recorder.generation();
  if (domain->told_in.exchange(spool) != spool) {
    recorder.append([&](Spool& texts) {
      Record record;
      record.type = kDomain;
      record.extra = domain->number;
      record.name = texts.text(domain->name);
      return record;
    });
  }
  return domain->number;
}

void begin(RecordType type, Domain* domain, const Event& event, uint64_t range_id) {
  Recorder& recorder = Recorder::instance();
  if (recorder.watches_ranges()) recorder.range_entered(event.name);
  if (recorder.is_on()) append(type, number_of(domain), event, range_id);
}

int push(Domain* domain, const Event& event) {
  Recorder& recorder = Recorder::instance();
  recorder.is_on();  // reads the settings, at the first event
  if (recorder.watches_ranges()) {
    pushed.push_back({domain != nullptr ? domain->number : 0, recorder.is_only_range(event.name)});
  }
  begin(kRangePush, domain, event, 0);
  return 0;
}

int pop(Domain* domain) {
  Recorder& recorder = Recorder::instance();
  const uint32_t number = domain != nullptr ? domain->number : 0;
  if (recorder.is_on()) append(kRangePop, number, {}, 0);
  for (std::size_t at = pushed.size(); at > 0; --at) {
    if (pushed[at - 1].domain != number) continue;
    const bool was_only_range = pushed[at - 1].is_only_range;
    pushed.erase(pushed.begin() + long(at - 1));
    if (was_only_range) recorder.only_range_left();
    break;
  }
  return 0;
}

uint64_t start(Domain* domain, const Event& event) {
  Recorder& recorder = Recorder::instance();
  recorder.is_on();
  uint64_t id;
  {
    std::lock_guard<std::mutex> hold(recorder.nvtx_lock());
    id = registry().next_range++;
    if (recorder.is_only_range(event.name)) registry().only_ranges.push_back(id);
  }
  begin(kRangeStart, domain, event, id);
  return id;
}

void finish(uint64_t id) {
  Recorder& recorder = Recorder::instance();
  if (recorder.is_on()) append(kRangeEnd, 0, {}, id);
  bool was_only_range = false;
  {
    std::lock_guard<std::mutex> hold(recorder.nvtx_lock());
    auto& open = registry().only_ranges;
    const auto found = std::find(open.begin(), open.end(), id);
    was_only_range = found != open.end();
    if (was_only_range) open.erase(found);
  }
  if (was_only_range) recorder.only_range_left();
}

void mark(Domain* domain, const Event& event) {
  Recorder::instance().is_on();
  begin(kMark, domain, event, 0);
}

// What a call of NVTX names; keeps the text where it had to be converted.
struct Named {
  std::string converted;
  Event event;

  explicit Named(const char* text) { event.name = shown(text); }
  explicit Named(const wchar_t* text) : converted(narrow(text)) { event.name = converted; }
  explicit Named(const EventAttributes* attributes) {
    event.attributes = attributes;
    if (attributes == nullptr) return;
    const auto& message = attributes->message;
    if (attributes->message_type == kAscii) event.name = shown(message.ascii);
    if (attributes->message_type == kRegistered && message.registered != nullptr) event.name = *message.registered;
    if (attributes->message_type == kWide) event.name = converted = narrow(message.wide);
  }
};

// ---- what NVTX calls -------------------------------------------------------------------------------------------
void mark_ex(const EventAttributes* a) { mark(nullptr, Named(a).event); }
void mark_a(const char* text) { mark(nullptr, Named(text).event); }
void mark_w(const wchar_t* text) { mark(nullptr, Named(text).event); }
uint64_t start_ex(const EventAttributes* a) { return start(nullptr, Named(a).event); }
uint64_t start_a(const char* text) { return start(nullptr, Named(text).event); }
uint64_t start_w(const wchar_t* text) { return start(nullptr, Named(text).event); }
void end(uint64_t id) { finish(id); }
int push_ex(const EventAttributes* a) { return push(nullptr, Named(a).event); }
int push_a(const char* text) { return push(nullptr, Named(text).event); }
int push_w(const wchar_t* text) { return push(nullptr, Named(text).event); }
int pop_default() { return pop(nullptr); }
void domain_mark(Domain* domain, const EventAttributes* a) { mark(domain, Named(a).event); }
uint64_t domain_start(Domain* domain, const EventAttributes* a) { return start(domain, Named(a).event); }
void domain_end(Domain*, uint64_t id) { finish(id); }
int domain_push(Domain* domain, const EventAttributes* a) { return push(domain, Named(a).event); }
int domain_pop(Domain* domain) { return pop(domain); }
const std::string* register_a(Domain*, const char* text) { return new std::string(shown(text)); }
const std::string* register_w(Domain*, const wchar_t* text) { return new std::string(narrow(text)); }
Domain* make_domain(std::string name) {
  std::lock_guard<std::mutex> hold(Recorder::instance().nvtx_lock());
  auto& domains = registry().domains;
  domains.push_back(new Domain{uint32_t(domains.size() + 1), std::move(name)});
  return domains.back();
}
Domain* create_a(const char* name) { return make_domain(std::string(shown(name))); }
Domain* create_w(const wchar_t* name) { return make_domain(narrow(name)); }

template <typename Call>
void put(Function** table, unsigned size, unsigned place, Call* call) {
  if (place < size && table[place] != nullptr) *table[place] = reinterpret_cast<Function>(call);
}

}  // namespace
}  // namespace hprof

// NVTX calls it at the program's first NVTX call, and lets us fill in its tables of functions.
extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(const void* (*get_table)(uint32_t)) {
  using namespace hprof;
  const auto* callbacks = get_table != nullptr ? static_cast<const CallbackTable*>(get_table(kCallbacks)) : nullptr;
  if (callbacks == nullptr || callbacks->struct_size < sizeof(CallbackTable)) return 0;
  Function** table = nullptr;
  unsigned size = 0;
  if (callbacks->get_module(kCore, &table, &size) == 0) return 0;
  put(table, size, 1, mark_ex);
  put(table, size, 2, mark_a);
  put(table, size, 3, mark_w);
  put(table, size, 4, start_ex);
  put(table, size, 5, start_a);
  put(table, size, 6, start_w);
  put(table, size, 7, end);
  put(table, size, 8, push_ex);
  put(table, size, 9, push_a);
  put(table, size, 10, push_w);
  put(table, size, 11, pop_default);
  if (callbacks->get_module(kCore2, &table, &size) == 0) return 1;
  put(table, size, 1, domain_mark);
  put(table, size, 2, domain_start);
  put(table, size, 3, domain_end);
  put(table, size, 4, domain_push);
  put(table, size, 5, domain_pop);
  put(table, size, 10, register_a);
  put(table, size, 11, register_w);
  put(table, size, 12, create_a);
  put(table, size, 13, create_w);
  return 1;
}
