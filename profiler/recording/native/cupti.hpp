// What the recorder asks of CUPTI. cupti_session.cpp implements it once for each set of headers that it is compiled
// against: CUPTI 12 and 13 lay records out differently, and which of them a program loads shows only inside it.
#pragma once

#include <cstdint>
#include <string>

namespace hprof {

// What to ask CUPTI for beside copies, kernels and memsets; each costs time in the program.
struct Wanted {
  bool graph_nodes = false;  // a record a node of a CUDA graph, not one a launch
  bool calls = true;
  bool waits = true;
  bool memory = true;
};

class CuptiSession {
 public:
  // `library`: a handle of the loaded libcupti. Gives a sentence about what is wrong, empty where it began.
  virtual std::string begin(void* library, const Wanted& wanted) = 0;
  virtual void record(bool on) = 0;
  virtual void flush(bool also_incomplete) = 0;
  virtual uint64_t timestamp_ns() = 0;
  // For a trial: what is asked for in this turn, all or all but some. Gives the names of what was left out.
  virtual const char* take_turn(unsigned turn) = 0;
  // Nodes that graphs were made of so far, by CUgraphNodeType.
  virtual uint64_t graph_nodes(unsigned type) const = 0;
  static constexpr unsigned kNodeTypes = 16;

 protected:
  ~CuptiSession() = default;
};

struct CuptiBuild {
  uint32_t header_version;  // CUPTI_API_VERSION
  CuptiSession* session;
  CuptiBuild* next;
};

struct StartedCupti {
  CuptiSession* session;  // null where none could be started
  uint32_t version, header_version;
  std::string wrong;
};

// Begins with the libcupti that the program has loaded, else with the first of `libraries` (paths, with colons between)
// that works here.
StartedCupti start_cupti_of(const std::string& libraries, const Wanted& wanted);

// All builds in this library, each added by its own file before anything starts.
CuptiBuild*& cupti_builds();
uint32_t cupti_major(uint32_t api_version);  // 28 -> 12, 130001 -> 13

}  // namespace hprof
