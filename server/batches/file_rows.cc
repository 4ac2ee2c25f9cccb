#include "server/batches/file_rows.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "server/log.h"

namespace spillway {

FileRows::FileRows(BatchInput& input, const BatchOrder* order, Journal& journal,
                   const ApiContext& context, Run run)
    : input_(input), order_(order), journal_(journal), context_(context), run_(std::move(run)) {}

void FileRows::fill(BatchRow* row, BatchLine line) const {
  row->key = line.number;
  row->line = std::move(line);
  row->run_id = run_.id;
  row->seed = run_.seed;
}

Result<bool> FileRows::next_of_file(BatchLine* line) {
  InputLine text;
  SPILLWAY_ASSIGN_OR_RETURN(const bool found, input_.next(&text));
  if (!found) return false;
  *line = read_batch_line(text, context_);
  ids_.check(line);
  return true;
}

// As next_of_file(), but skips lines with a result: every line is a read of its own.
Result<bool> FileRows::next_of_order(BatchLine* line) {
  const std::vector<BatchOrder::Line>& lines = order_->lines();
  while (started_lines_ < lines.size() && journal_.finished(lines[started_lines_].number)) {
    ++started_lines_;
  }
  if (started_lines_ == lines.size()) return false;
  const BatchOrder::Line& place = lines[started_lines_++];
  input_.go_to(place.offset, place.number);
  InputLine text;
  SPILLWAY_ASSIGN_OR_RETURN(const bool found, input_.next(&text));
  SPILLWAY_CHECK(found && text.number == place.number);  // The bytes are those of the first pass.
  *line = read_batch_line(text, context_);
  if (place.repeats_id) refuse_repeated_id(line);
  return true;
}

Result<BatchRows::Next> FileRows::next(int64_t in_flight, int64_t, BatchRow* row) {
  while (!read_all_) {
    BatchLine line;
    SPILLWAY_ASSIGN_OR_RETURN(const bool found,
                              order_ == nullptr ? next_of_file(&line) : next_of_order(&line));
    read_all_ = !found;
    if (!found || journal_.finished(line.number)) continue;
    const Suspect* suspect = journal_.suspect(line.number);
    if (!line.error && suspect != nullptr && suspect->convicted) line.error = crashed_row();
    if (suspect != nullptr && !line.error) {
      parties_[suspect->party].push_back(std::move(line));
      continue;
    }
    fill(row, std::move(line));
    return Next::kRow;
  }
  if (party_.empty()) {
    if (parties_.empty()) return Next::kEnd;
    if (in_flight > 0) return Next::kLater;
    party_ = std::move(parties_.begin()->second);
    parties_.erase(parties_.begin());
    SPILLWAY_RETURN_IF_ERROR(commit());  // Before rows that may crash the program
    log_info("Running " + std::to_string(party_.size()) +
             " of the lines that ran in a crash, by themselves.");
  }
  fill(row, std::move(party_.front()));
  party_.pop_front();
  return Next::kRow;
}

Status FileRows::set_aside(int64_t key, const Status& cause) {
  set_aside_.push_back(key);
  cause_ = cause;
  return {};
}

Status FileRows::left_over() const {
  if (set_aside_.empty()) return {};
  return cause_.at(std::to_string(set_aside_.size()) +
                   " lines failed in every try, by no fault of their own, line " +
                   std::to_string(*std::min_element(set_aside_.begin(), set_aside_.end())) +
                   " the first of them");
}

}  // namespace spillway
