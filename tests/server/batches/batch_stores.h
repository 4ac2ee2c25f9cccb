// What the tests of a batch's parts share: stores in a folder, lines, and batches in any state.
#pragma once

#include <catch2/catch.hpp>
#include <ctime>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "server/batches/batch_table.h"
#include "server/batches/file_store.h"
#include "tests/server/batches/batch_lines.h"
#include "tests/support/temp_directory.h"

namespace spillway::test {

struct BatchStores {
  // Keeps a file of clients, or of results.
  std::string add_file(const std::string& content, std::optional<int64_t> expires = {},
                       const std::string& name = "in.jsonl",
                       const std::string& purpose = "batch") const {
    auto upload = files->begin("me").value();
    REQUIRE(upload.append(content).ok());
    return files->keep(std::move(upload), name, purpose, 1000, expires).value().id;
  }

  // A batch over a file, as far as `state`.
  BatchRecord add_batch(const std::string& id, const std::string& file,
                        BatchState state = BatchState::kValidating, int64_t total = 0) const {
    BatchRecord record;
    record.id = id;
    record.owner = "me";
    record.endpoint = "/v1/completions";
    record.input_file = file;
    record.window = "24h";
    record.state = state;
    record.entered[0] = 1000;
    record.expires_at = static_cast<int64_t>(std::time(nullptr)) + 86'400;
    record.total = total;
    REQUIRE(batches->add(record).ok());
    return record;
  }

  std::vector<Json> lines_of(const std::string& id) const {
    std::ifstream in(files->path_of(id));
    std::vector<Json> lines;
    for (std::string text; std::getline(in, text);) lines.push_back(Json::parse(text));
    return lines;
  }

  std::vector<std::string> result_files() const {
    std::vector<std::string> ids;
    FileStore::Page page;
    page.purpose = "batch_output";
    const FileStore::Listing listing = files->list("me", page).value();
    for (const StoredFile& file : listing.files) ids.push_back(file.id);
    return ids;
  }

  TempDirectory folder;
  Tokenizer tokenizer = byte_tokenizer();
  FakeScheduler engine;
  ApiContext context = fake_context(engine.shape(), &tokenizer);
  std::unique_ptr<FileStore> files = FileStore::open(folder.path(), {}).value();
  std::unique_ptr<BatchTable> batches = BatchTable::open(folder.path()).value();
};

}  // namespace spillway::test
