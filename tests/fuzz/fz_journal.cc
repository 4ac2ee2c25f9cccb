// A journal file of any bytes: an error, or rows; and the same rows when it is opened again.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

#include "scheduler/journal.h"

namespace {

using spillway::Journal;
using spillway::Result;
using spillway::Status;

// The rows, or nothing when the file is refused.
std::map<int64_t, std::string> rows_of(const std::string& path) {
  std::map<int64_t, std::string> rows;
  const Result<Journal> journal = Journal::resume(path, {});
  if (!journal.ok()) return rows;
  const Status read = journal->for_each([&](int64_t row, std::string_view line) -> Status {
    if (row <= 0 || !journal->finished(row)) std::abort();
    rows[row] = line;
    return {};
  });
  if (!read.ok()) rows.clear();
  return rows;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // One file a process, in memory where there is a place for it.
  static const std::string path =
      std::string(::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp") + "/spillway-fz-journal-" +
      std::to_string(::getpid());
  if (!Journal::remove(path).ok()) std::abort();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  const auto first = rows_of(path);
  if (rows_of(path) != first) std::abort();
  if (!Journal::remove(path).ok()) std::abort();
  return 0;
}
