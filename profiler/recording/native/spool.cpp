#include "spool.hpp"

#include <cxxabi.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "clock.hpp"

namespace hprof {
namespace {

constexpr std::size_t kBufferedRecords = 1024;
constexpr std::size_t kMaxTextBytes = 8192;            // of one name: templates can be longer than anyone reads
constexpr std::size_t kMaxAllTextBytes = 64u << 20;    // of all names: the bound of the table's memory
constexpr uint32_t kMaxTexts = 1u << 20;
constexpr std::size_t kMaxPendingStringBytes = 1u << 16;
constexpr int kMaxFilesOfProcess = 10000;

}  // namespace

bool Spool::open(const char* folder, ControlPage* control) {
  control_ = control;
  for (int number = 0; number < kMaxFilesOfProcess && fd_ < 0; ++number) {
    char path[4096];
    const int length = std::snprintf(path, sizeof path, "%s/%d-%d.hspool", folder, int(getpid()), number);
    if (length >= int(sizeof path)) return false;
    fd_ = ::open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    path_ = path;
    if (fd_ < 0 && errno != EEXIST) return false;
  }
  if (fd_ < 0) return false;
  struct stat file {};
  fstat(fd_, &file);
  file_device_ = file.st_dev;
  file_number_ = file.st_ino;
  FileHeader header{};
  std::memcpy(header.magic, "hprofspl", 8);
  header.version = kFormatVersion;
  header.record_bytes = sizeof(Record);
  header.header_bytes = sizeof(FileHeader);
  header.process = uint32_t(getpid());
  header.parent = uint32_t(getppid());
  header.realtime_ns = clock_ns(CLOCK_REALTIME);
  header.monotonic_ns = clock_ns(CLOCK_MONOTONIC);
  if (!write_all(&header, sizeof header)) {
    abandon();
    return false;
  }
  size_bytes_ = sizeof header;
  records_.reserve(kBufferedRecords);
  // they can be said when the table of names is full
  for (const char* reason : {kDroppedByCupti, kLimitReached, kDiskFull, kNamesLost}) text(reason);
  return true;
}

uint32_t Spool::text(std::string_view text) {
  if (text.empty()) return 0;
  text = text.substr(0, kMaxTextBytes);
  return intern(text_ids_, text, text);
}

uint32_t Spool::kernel_name(const char* mangled) {
  if (mangled == nullptr || *mangled == 0) return 0;
  std::string_view key(mangled);
  auto found = kernel_ids_.find(key);
  if (found != kernel_ids_.end()) return found->second;
  int status = -1;
  const bool is_mangled = key.substr(0, 2) == "_Z";  // `a` alone would be taken for a type, and become `signed char`
  char* demangled = is_mangled ? abi::__cxa_demangle(mangled, nullptr, nullptr, &status) : nullptr;
  std::string_view shown(status == 0 && demangled != nullptr ? demangled : mangled);
  uint32_t id = intern(kernel_ids_, key, shown.substr(0, kMaxTextBytes));
  std::free(demangled);
  return id;
}

uint32_t Spool::intern(
    std::unordered_map<std::string_view, uint32_t>& ids, std::string_view key, std::string_view text) {
  auto found = ids.find(key);
  if (found != ids.end()) return found->second;
  if (next_text_ >= kMaxTexts || text_bytes_ + key.size() + text.size() > kMaxAllTextBytes) {
    ++lost_texts_;
    return 0;
  }
  text_bytes_ += key.size() + text.size();
  kept_.emplace_back(key);
  uint32_t id = next_text_++;
  ids.emplace(std::string_view(kept_.back()), id);
  StringHeader header{id, uint32_t(text.size())};
  strings_.append(reinterpret_cast<const char*>(&header), sizeof header);
  strings_.append(text);
  strings_.append((8 - text.size() % 8) % 8, '\0');
  ++n_strings_;
  if (strings_.size() >= kMaxPendingStringBytes) flush_strings(false);
  return id;
}

void Spool::append(const Record& record) {
  if (fd_ < 0) return;
  records_.push_back(record);
  if (records_.size() >= kBufferedRecords) flush();
}

void Spool::append_lost(uint64_t count, std::string_view why) {
  if (count == 0) return;
  Record lost;
  lost.type = kLost;
  lost.start = clock_ns(CLOCK_REALTIME);
  lost.bytes = count;
  lost.name = text(why);
  append(lost);
}

void Spool::append_surely(const Record& record) {
  if (fd_ < 0) return;
  flush();
  records_.push_back(record);
  flush_strings(true);
  flush_records(true);
}

void Spool::flush() {
  if (fd_ < 0) return;
  flush_strings(false);
  flush_records(false);
}

void Spool::flush_strings(bool even_if_full) {
  if (n_strings_ == 0) return;
  write_chunk(kStrings, strings_.data(), strings_.size(), n_strings_, even_if_full);
  strings_.clear();
  n_strings_ = 0;
}

void Spool::flush_records(bool even_if_full) {
  if (records_.empty()) return;
  const uint32_t count = uint32_t(records_.size());
  if (!write_chunk(kRecords, records_.data(), count * sizeof(Record), count, even_if_full)) lost_records_ += count;
  records_.clear();
}

bool Spool::is_its_file() const {
  struct stat file {};
  return fstat(fd_, &file) == 0 && file.st_dev == file_device_ && file.st_ino == file_number_;
}

// A program may close all descriptors that it does not know, and get this number for a file of its own, into which
// nothing of ours may go. The spool is then opened again.
bool Spool::has_its_file() {
  if (is_its_file()) return true;
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd_ < 0) return false;
  if (is_its_file() && lseek(fd_, off_t(size_bytes_), SEEK_SET) == off_t(size_bytes_)) return true;
  ::close(fd_);
  fd_ = -1;
  return false;
}

bool Spool::write_chunk(uint32_t kind, const void* payload, std::size_t bytes, uint32_t count, bool even_if_full) {
  if (!has_its_file()) return false;
  const uint64_t total = sizeof(ChunkHeader) + bytes;
  if (control_ != nullptr) {
    const uint64_t limit = control_->max_bytes.load(std::memory_order_relaxed);
    const uint64_t before = control_->written_bytes.fetch_add(total, std::memory_order_relaxed);
    if (!even_if_full && limit != 0 && before + total > limit) {
      control_->written_bytes.fetch_sub(total, std::memory_order_relaxed);
      control_->full.store(1);
      return false;
    }
  }
  ChunkHeader header{kChunkMagic, kind, uint32_t(bytes), count};
  if (write_all(&header, sizeof header) && write_all(payload, bytes)) {
    size_bytes_ += total;
    return true;
  }
  // Half a chunk would hide what came after it. What a full disk refused is cut off again.
  if (ftruncate(fd_, off_t(size_bytes_)) == 0) lseek(fd_, off_t(size_bytes_), SEEK_SET);
  if (control_ != nullptr) control_->full.store(2);
  return false;
}

bool Spool::write_all(const void* data, std::size_t bytes) {
  const char* at = static_cast<const char*>(data);
  std::size_t left = bytes;
  while (left > 0) {
    const ssize_t written = ::write(fd_, at, left);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    at += written;
    left -= std::size_t(written);
  }
  return true;
}

void Spool::close() {
  if (fd_ < 0) return;
  flush();
  append_lost(lost_records_, control_ != nullptr && control_->full.load() == 2 ? kDiskFull : kLimitReached);
  append_lost(lost_texts_, kNamesLost);
  Record end;
  end.type = kEnd;
  end.start = clock_ns(CLOCK_REALTIME);
  records_.push_back(end);
  flush_strings(true);
  flush_records(true);
  abandon();
}

void Spool::abandon() {
  if (fd_ >= 0 && is_its_file()) ::close(fd_);
  fd_ = -1;
  records_.clear();
  strings_.clear();
  n_strings_ = 0;
  next_text_ = 1;
  text_bytes_ = 0;
  text_ids_.clear();
  kernel_ids_.clear();
  kept_.clear();
  lost_records_ = lost_texts_ = 0;
}

}  // namespace hprof
