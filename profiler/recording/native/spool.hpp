// One process's spool file: records and strings are gathered in a small buffer and appended as whole chunks.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "format.hpp"

namespace hprof {

class Spool {
 public:
  // Opens FOLDER/PID-N.hspool; false where that cannot be done. Not thread-safe: the recorder holds its lock.
  bool open(const char* folder, ControlPage* control);
  bool is_open() const { return fd_ >= 0; }

  // The id of a text, written before the first record that names it. 0 for none, and once the table is full.
  uint32_t text(std::string_view text);
  // The id of a kernel's demangled name.
  uint32_t kernel_name(const char* mangled);

  void append(const Record& record);
  // That so many records, or names, are missing.
  void append_lost(uint64_t count, std::string_view why);
  // Written at once, and beyond the limit too: what says that the limit was reached.
  void append_surely(const Record& record);
  void flush();

  // Appends the last records, also where the limit is reached: a spool says how it ended.
  void close();
  // In a forked child: forgets the parent's file and what was gathered for it.
  void abandon();

  uint64_t lost_records() const { return lost_records_; }

 private:
  uint32_t intern(std::unordered_map<std::string_view, uint32_t>& ids, std::string_view key, std::string_view text);
  bool write_chunk(uint32_t kind, const void* payload, std::size_t bytes, uint32_t count, bool even_if_full);
  bool write_all(const void* data, std::size_t bytes);
  bool has_its_file();
  bool is_its_file() const;
  void flush_strings(bool even_if_full);
  void flush_records(bool even_if_full);

  int fd_ = -1;
  std::string path_;
  uint64_t file_device_ = 0, file_number_ = 0;  // which file `fd_` has to be
  uint64_t size_bytes_ = 0;  // whole chunks: where a failed write is cut off again
  ControlPage* control_ = nullptr;
  std::vector<Record> records_;
  std::string strings_;  // encoded, to be written
  uint32_t n_strings_ = 0;
  uint32_t next_text_ = 1;
  std::size_t text_bytes_ = 0;
  std::deque<std::string> kept_;  // what the keys below point into
  std::unordered_map<std::string_view, uint32_t> text_ids_;
  std::unordered_map<std::string_view, uint32_t> kernel_ids_;  // by mangled name
  uint64_t lost_records_ = 0;
  uint64_t lost_texts_ = 0;
};

}  // namespace hprof
