// The rows of a batch's file, with their results in a journal. Suspects of a crash come last, party
// by party, each when nothing else runs.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "scheduler/journal.h"
#include "server/batches/batch_input.h"
#include "server/batches/batch_order.h"
#include "server/batches/batch_rows.h"

namespace spillway {

class FileRows : public BatchRows {
 public:
  struct Run {
    std::string id;  // As BatchRow::run_id
    uint64_t seed = 0;
  };

  // All outlive it. `input` is at its first line. `order`: null: the rows start in the input's.
  FileRows(BatchInput& input, const BatchOrder* order, Journal& journal, const ApiContext& context,
           Run run);

  // kInvalidArgument: the input has changed.
  Result<Next> next(int64_t in_flight, int64_t room, BatchRow* row) override;
  Status finish(const JournalRow& result) override { return journal_.finish(result); }
  Status commit() override { return journal_.commit(); }
  Status set_aside(int64_t key, const Status& cause) override;
  Status left_over() const override;
  JournalCounts counts() const override { return journal_.counts(); }

 private:
  Result<bool> next_of_file(BatchLine* line);
  Result<bool> next_of_order(BatchLine* line);
  void fill(BatchRow* row, BatchLine line) const;

  BatchInput& input_;
  const BatchOrder* const order_;
  Journal& journal_;
  const ApiContext& context_;
  const Run run_;

  CustomIds ids_;             // Of lines in the input's order
  size_t started_lines_ = 0;  // Of the order
  bool read_all_ = false;
  std::map<int64_t, std::deque<BatchLine>> parties_;  // Suspects, which wait for all others
  std::deque<BatchLine> party_;                       // Whose turn it is
  std::vector<int64_t> set_aside_;
  Status cause_;  // Why the last of them was
};

}  // namespace spillway
