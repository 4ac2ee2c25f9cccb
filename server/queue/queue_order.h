// The order in which the rows of a job are claimed. Workers take runs of it, so rows that begin
// alike are neighbours, as in a batch (batch_order.h); between such groups long and short ones are
// mixed, so that every worker's block has some of both at any time, and the shortest come last, so
// that no worker is left with a long one at the end. No result depends on it.
#pragma once

#include <cstdint>
#include <vector>

namespace spillway {

struct QueueRow {
  uint64_t offset = 0;  // In the file
  int64_t number = 0;   // Of its line
  double work = 0;      // Tokens that it may take, about
  uint64_t group = 0;   // Rows with equal ones begin alike.
  bool repeats_id = false;
};

// REQUIRES: rows of a group are neighbours.
void order_rows(std::vector<QueueRow>* rows);

}  // namespace spillway
