// The files that clients hand in and get back over /v1/files: contents in a folder, what is known
// of them in one SQLite file beside it. Nothing that a client says becomes a part of a path: names
// on disk are ids of our making.
//
// DIR/store.db        what is known of each file
// DIR/files/ID        contents; a file without a row in store.db is what a crash left, and goes
// DIR/files/ID.part   an upload that has not ended
//
// A file is there from the moment keep() returns, after a power cut, too: contents and directory
// are synced before its row is written. Any thread; calls block for the disk.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "offload/io/file.h"
#include "scheduler/database.h"

namespace spillway {

struct StoredFile {
  std::string id;       // "file-" and 24 hex digits
  std::string owner;    // Whose it is; others do not see it
  std::string name;     // As the client called it
  std::string purpose;  // "batch" or "batch_output"
  int64_t bytes = 0;
  int64_t created_at = 0;             // Unix seconds
  std::optional<int64_t> expires_at;  // Unix seconds; empty: never
};

// Of what clients hand in. Results are bounded by none of them: their bytes lie in a journal
// already, and a batch that could not write them could not end.
struct FileLimits {
  int64_t file_bytes_max = int64_t{1} << 30;
  int64_t owner_bytes_max = int64_t{10} << 30;  // All files of one owner, with uploads and results
  int64_t owner_files_max = 10'000;
};

class FileStore {
 public:
  // Makes the folder if need be, and removes what a crash left. kCapacity: another process has it.
  static Result<std::unique_ptr<FileStore>> open(const std::string& directory,
                                                 const FileLimits& limits);

  // A file that is being written. Gives its place back if it is not kept.
  class Upload {
   public:
    Upload(Upload&&) noexcept = default;
    ~Upload();

    // kCapacity: larger than a file may be, or than the owner has room for, or than the disk.
    Status append(std::string_view bytes);
    int64_t bytes() const { return bytes_; }

   private:
    friend class FileStore;
    Upload(FileStore* store, std::string id, std::string owner, File file, bool limited)
        : store_(store),
          id_(std::move(id)),
          owner_(std::move(owner)),
          file_(std::move(file)),
          limited_(limited) {}

    // Null after a move or keep().
    struct NoDelete {
      void operator()(FileStore*) const {}
    };
    std::unique_ptr<FileStore, NoDelete> store_;
    std::string id_;
    std::string owner_;
    File file_;
    bool limited_ = true;
    int64_t bytes_ = 0;
  };

  // kCapacity: the owner has as many files as may be.
  Result<Upload> begin(const std::string& owner);

  // As begin(), for results: no limit, though they count.
  Result<Upload> begin_results(const std::string& owner);

  // kCapacity: the owner has no room for more.
  Status check_room(const std::string& owner) const;

  // Makes the upload a file. `now`: Unix seconds.
  Result<StoredFile> keep(Upload upload, const std::string& name, const std::string& purpose,
                          int64_t now, std::optional<int64_t> expires_at);

  // kNotFound: there is none of this owner's.
  Result<StoredFile> find(const std::string& owner, const std::string& id) const;

  struct Page {
    std::string purpose;     // Empty: any
    std::string after;       // The id behind which the page begins; empty: at the beginning
    int64_t limit = 10'000;  // >= 1
    bool ascending = false;  // By age; else the newest first
  };
  struct Listing {
    std::vector<StoredFile> files;
    bool more = false;
  };
  // kNotFound: there is no file `after`, nor was it removed lately.
  Result<Listing> list(const std::string& owner, const Page& page) const;

  // Removes the file: kNotFound as find().
  Status remove(const std::string& owner, const std::string& id);

  // Removes the owner's files of this purpose and name, of which there may be none.
  Status remove_named(const std::string& owner, const std::string& purpose,
                      const std::string& name);

  // Removes what has expired by `now`, but for the files `in_use`; returns the ids.
  Result<std::vector<std::string>> expire(int64_t now, const std::set<std::string>& in_use = {});

  // Where the contents of a file lie.
  std::string path_of(const std::string& id) const;

 private:
  FileStore(std::string directory, const FileLimits& limits, Database database);

  Status make_tables();
  Status remove_strays();
  Result<Upload> begin(const std::string& owner, bool limited);
  Status take(const std::string& owner, int64_t bytes, bool limited);
  Status check_count(int64_t files) const;
  // REQUIRES of both: mutex_ is held.
  Result<StoredFile> find_locked(const std::string& owner, const std::string& id) const;
  Result<int64_t> place_of(const std::string& owner, const std::string& id) const;
  void give_back(const std::string& owner, int64_t bytes);

  const std::string directory_;
  const FileLimits limits_;
  mutable std::mutex mutex_;  // For all below
  mutable Database database_;
  struct Held {
    int64_t bytes = 0, files = 0;
  };
  std::map<std::string, Held> held_;  // By owner, uploads among them
  // Files removed lately, so that who removes files page by page can name the last one of a page.
  struct Gone {
    std::string id, owner;
    int64_t place = 0;
  };
  std::deque<Gone> gone_;
};

}  // namespace spillway
