#include "policy/flexgen/flexgen_search.h"

#include <algorithm>

namespace spillway {

namespace {

constexpr int64_t kSequencesMax = 1'000'000;
// Equal throughputs may seem to fall by rounding, which must not end the search.
constexpr double kRounding = 1e-9;

class Search {
 public:
  Search(const FlexgenProblem& problem, const FlexgenSearch& search)
      : problem_(problem), search_(search) {}

  Result<FlexgenChoice> run() {
    if (search_.micro_batch) {
      SPILLWAY_RETURN_IF_ERROR(try_micro_batch(*search_.micro_batch).status());
    } else {
      for (int64_t size = 1; size <= kSequencesMax; size = size < 4 ? size + 1 : size * 2) {
        SPILLWAY_ASSIGN_OR_RETURN(const bool fits, try_micro_batch(size));
        if (!fits) break;
      }
    }
    if (best_) return *best_;
    return refusal_;
  }

 private:
  // Nothing if the block does not fit.
  Result<std::optional<FlexgenChoice>> choose(const FlexgenBlock& block) {
    auto choice = flexgen_placement(problem_, block, search_.pins, search_.limits);
    if (choice.ok()) return std::optional(choice.value());
    if (choice.status().code() != Code::kInfeasible) return choice.status();
    if (refusal_.ok()) refusal_ = choice.status();
    return std::optional<FlexgenChoice>();
  }

  void keep(const FlexgenChoice& choice) {
    const bool better =
        !best_ || choice.cost.tokens_per_second > best_->cost.tokens_per_second * (1 + kRounding);
    if (better) best_ = choice;
  }

  // Whether this size of micro-batch fits in any number.
  Result<bool> try_micro_batch(int64_t size) {
    if (search_.micro_batches) {
      SPILLWAY_ASSIGN_OR_RETURN(const auto choice, choose({size, *search_.micro_batches}));
      if (choice) keep(*choice);
      return choice.has_value();
    }
    double before = 0;
    int64_t count = 1;
    for (; count == 1 || size * count <= kSequencesMax; ++count) {
      SPILLWAY_ASSIGN_OR_RETURN(const auto choice, choose({size, count}));
      if (!choice) break;
      const double throughput = choice->cost.tokens_per_second;
      if (throughput < before * (1 - kRounding)) break;
      before = throughput;
      keep(*choice);
    }
    return count > 1;
  }

  const FlexgenProblem& problem_;
  const FlexgenSearch& search_;
  std::optional<FlexgenChoice> best_;
  Status refusal_;  // The first refusal
};

}  // namespace

Result<FlexgenChoice> flexgen_search(const FlexgenProblem& problem, const FlexgenSearch& search) {
  return Search(problem, search).run();
}

}  // namespace spillway
