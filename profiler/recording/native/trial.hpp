// Settings of CUPTI that might cost a program less, tried out by benchmarks/gpu/record_candidates.py and set by nothing
// else: numbers by name in the variable HPROF_SPOOL_TRIAL, such as "buffer_kib=4096,zeroed=1".
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

namespace hprof {

class Trial {
 public:
  static const Trial& instance();

  // The number that a setting was given, else the usual one.
  uint64_t number(const std::string& name, uint64_t usual) const {
    const auto found = numbers_.find(name);
    return found == numbers_.end() ? usual : found->second;
  }
  bool has(const std::string& name) const { return numbers_.count(name) != 0; }
  bool is_on(const std::string& name) const { return number(name, 0) != 0; }

 private:
  Trial();
  std::unordered_map<std::string, uint64_t> numbers_;
};

}  // namespace hprof
