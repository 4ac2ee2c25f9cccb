#include "server/ranked_runtime.h"

#include <algorithm>
#include <exception>
#include <future>
#include <thread>
#include <utility>

#include "kernels/base/processors.h"
#include "kernels/ranks/gpu_ranks.h"
#include "kernels/ranks/thread_mail.h"
#include "kernels/ranks/thread_ranks.h"
#include "scheduler/stages/layer_ranks.h"
#include "scheduler/stages/stage_ring.h"
#include "scheduler/stages/stage_worker.h"

namespace spillway {

namespace {

// Of several stages each is a rank, too, whose name comes before.
std::string name_of(size_t rank, const EngineFlags& flags) {
  const std::string name = "rank " + std::to_string(rank);
  return flags.stages > 1 ? name + of_ranks_here(static_cast<int>(flags.rank_count())) : name;
}

Result<std::vector<std::unique_ptr<RankGroup>>> group_of(const std::vector<OpenedModel>& opened) {
  if (!opened[0].device->discrete()) return thread_ranks(static_cast<int>(opened.size()));
  std::vector<int> gpus;
  for (const OpenedModel& one : opened) gpus.push_back(static_cast<int>(one.flags.gpu));
  return gpu_ranks(gpus);
}

}  // namespace

// The threads of the ranks that follow, and the mail between all.
class RanksHere::Followers {
 public:
  // What a rank says of itself when it is open.
  struct Opened {
    KvCacheOptions cache;
    std::string plan_line;
  };

  explicit Followers(const EngineFlags& flags)
      : flags_(flags), mail_(thread_mail(static_cast<int>(flags.rank_count()))) {}
  ~Followers() {
    end_ranks(*mail_[0]);
    for (std::thread& thread : threads_) thread.join();
  }
  Followers(const Followers&) = delete;
  Followers& operator=(const Followers&) = delete;

  RankMail& mail() { return *mail_[0]; }
  bool of_stage() const { return flags_.stages > 1; }

  // Opens the next rank on a thread of its own, where it follows until it is told to end.
  void start(OpenedModel opened, Plan plan, RuntimeOptions options) {
    const size_t rank = threads_.size() + 1;
    std::promise<Result<Opened>> promise;
    opened_.push_back(promise.get_future());
    threads_.emplace_back([this, rank, told = std::move(promise), model = std::move(opened),
                           its_plan = std::move(plan), its_options = std::move(options)]() mutable {
      follow(*mail_[rank], std::move(told), std::move(model), std::move(its_plan), its_options);
      mail_[rank].reset();  // Nobody waits for what does not come.
    });
  }

  // Waits until all are open.
  Result<std::vector<Opened>> wait_opened() {
    std::vector<Opened> all;
    Status status;
    for (size_t i = 0; i < opened_.size(); ++i) {
      Result<Opened> one = opened_[i].get();
      if (!one.ok() && status.ok()) status = one.status().at(name_of(i + 1, flags_));
      if (one.ok()) all.push_back(std::move(one).value());
    }
    SPILLWAY_RETURN_IF_ERROR(status);
    return all;
  }

 private:
  static void follow(RankMail& mail, std::promise<Result<Opened>> told, OpenedModel opened,
                     Plan plan, const RuntimeOptions& options) {
    std::unique_ptr<Runtime> runtime;
    const auto open = [&]() -> Result<Opened> {
      SPILLWAY_ASSIGN_OR_RETURN(runtime, open_runtime(std::move(opened), std::move(plan), options));
      const KvCache& kv = runtime->engine().kv();
      Opened self{kv.options(), plan_line(*runtime)};
      self.cache.memory_bytes = kv.memory_bytes();
      self.cache.host_bytes = kv.host_bytes();
      self.cache.disk_bytes = kv.disk_bytes();
      return self;
    };
    Result<Opened> self = Status(Code::kCapacity, "");
    try {
      self = open();
    } catch (const std::exception& error) {
      self = Status(Code::kCapacity, std::string("it cannot be opened: ") + error.what());
    }
    const bool ok = self.ok();
    told.set_value(std::move(self));
    if (!ok) return;
    // What fails in a sweep is told to rank 0; mail between threads does not fail.
    try {
      (void)run_stage(mail, runtime->engine());
    } catch (const std::exception&) {
      options.ranks->leave();  // No memory even for a message: rank 0 learns that this one is gone.
    }
  }

  const EngineFlags flags_;                      // Rank 0's
  std::vector<std::unique_ptr<RankMail>> mail_;  // By rank
  std::vector<std::future<Result<Opened>>> opened_;
  std::vector<std::thread> threads_;
};

namespace {

// All ranks' plans: of one block, since they run the same sweeps, and with the same shares on each
// tier, where a search has chosen them.
Result<std::vector<Plan>> plans_of(const std::vector<OpenedModel>& opened, const PlanWishes& wishes,
                                   const Runtime::Planner& planner, const HardwareProfile* profile,
                                   uint64_t disk_parts) {
  std::vector<Plan> plans;
  for (size_t rank = 0; rank < opened.size(); ++rank) {
    EngineFlags flags = opened[rank].flags;
    PlanMachine machine = machine_of(opened[rank], profile);
    machine.disk_free_bytes /= disk_parts;
    if (rank > 0) {
      const Plan& first = plans[0];
      flags.block = first.block_sequences();
      flags.prefill_tokens = first.prefill_tokens();
      flags.prefill_target = first.prefill_target();
      if (first.micro_batch_sequences() > 0) flags.micro_batch = first.micro_batch_sequences();
      if (first.discrete) flags.attention = first.host_attention() ? "host" : "device";
      if (planner) {
        flags.weights = first.percent.weights;
        flags.kv = first.percent.kv;
        flags.activations = first.percent.activations;
      }
    }
    Result<Plan> plan = rank == 0 && planner
                            ? planner(opened[0])
                            : make_plan(opened[rank].model, machine, flags, wishes);
    if (!plan.ok()) {
      return opened.size() == 1 ? plan.status() : plan.status().at(name_of(rank, opened[0].flags));
    }
    if (rank > 0) {
      // They cut sweeps into the same micro-batches.
      plan->engine.micro_batch_sequences = plans[0].micro_batch_sequences();
      plan->engine.draft_rows_max = plans[0].engine.draft_rows_max;
      SPILLWAY_CHECK(plan->engine.sweep_tokens_max == plans[0].engine.sweep_tokens_max);
    }
    plans.push_back(std::move(plan).value());
  }
  return plans;
}

}  // namespace

Result<std::vector<EngineFlags>> rank_flags(const EngineFlags& flags) {
  const int64_t ranks = flags.rank_count();
  const int64_t threads = flags.threads > 0 ? flags.threads : usable_cores();
  if (threads < ranks) {
    return invalid_argument(std::to_string(ranks) + " ranks need as many threads, " +
                            (flags.threads > 0 ? "and --threads is " : "and there are ") +
                            std::to_string(threads) + "; each rank computes with one at least");
  }
  std::vector<EngineFlags> all;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    EngineFlags& own = all.emplace_back(flags);
    own.ranks = ranks;
    own.rank = rank;
    own.threads = threads / ranks + (rank < threads % ranks ? 1 : 0);
    if (flags.device == "cuda") own.gpu += rank;
    if (flags.gpus) {
      own.device = "cuda";
      own.gpu = (*flags.gpus)[static_cast<size_t>(rank)];
      own.gpus.reset();
    }
    // Of stages each has a name of its own already.
    const std::string suffix = (flags.stages > 1 ? "." : ".rank") + std::to_string(rank);
    if (rank > 0 && !flags.trace.empty()) own.trace += suffix;
  }
  return all;
}

RanksHere::RanksHere() = default;
RanksHere::RanksHere(RanksHere&&) noexcept = default;
RanksHere::~RanksHere() = default;

Result<RanksHere> RanksHere::open(const std::string& model, const EngineFlags& flags,
                                  const RuntimeOptions& options, std::optional<FileId> damaged) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<EngineFlags> all_flags, rank_flags(flags));
  RanksHere ranks;
  for (EngineFlags own : all_flags) {
    if (own.rank > 0 && own.device == "auto") {
      // What it was for the first.
      own.device = ranks.opened_[0].device->discrete() ? "cuda" : "cpu";
      if (ranks.opened_[0].device->discrete()) own.gpu += own.rank;
    }
    Result<OpenedModel> one =
        own.rank == 0 ? open_model(model, own, options, damaged) : open_model(model, own, {});
    if (!one.ok()) {
      return own.rank == 0 ? one.status() : one.status().at(name_of(ranks.opened_.size(), own));
    }
    ranks.opened_.push_back(std::move(one).value());
  }
  return ranks;
}

void RanksHere::go_by(int64_t block, int64_t prefill_tokens) {
  for (OpenedModel& rank : opened_) {
    rank.flags.block = block;
    rank.flags.prefill_tokens = prefill_tokens;
  }
}

Status RanksHere::make_plans(const PlanWishes& wishes, const Runtime::Planner& planner,
                             const HardwareProfile* profile, uint64_t disk_parts) {
  wishes_ = wishes;
  SPILLWAY_ASSIGN_OR_RETURN(plans_, plans_of(opened_, wishes, planner, profile, disk_parts));
  return {};
}

Status RanksHere::start_others() {
  if (opened_.size() == 1) return {};
  SPILLWAY_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<RankGroup>> group, group_of(opened_));
  followers_ = std::make_shared<Followers>(opened_[0].flags);
  RuntimeOptions quiet;
  quiet.wishes = wishes_;
  quiet.start_scheduler = false;
  for (size_t rank = 1; rank < opened_.size(); ++rank) {
    quiet.ranks = std::move(group[rank]);
    followers_->start(std::move(opened_[rank]), std::move(plans_[rank]), quiet);
  }
  group_ = std::move(group[0]);
  return {};
}

Result<std::unique_ptr<Runtime>> RanksHere::open_first(RuntimeOptions options) {
  options.ranks = group_;
  return open_runtime(std::move(opened_[0]), std::move(plans_[0]), options);
}

Result<RanksHere::Others> RanksHere::others() {
  Others found;
  if (followers_ == nullptr) return found;
  SPILLWAY_ASSIGN_OR_RETURN(const auto all, followers_->wait_opened());
  for (const Followers::Opened& other : all) {
    found.caches.push_back(other.cache);
    found.plan_lines.push_back(other.plan_line);
  }
  SPILLWAY_ASSIGN_OR_RETURN(found.ranks, layer_ranks(followers_->mail(), *group_, found.caches,
                                                     followers_->of_stage(), followers_));
  followers_.reset();  // They end with `ranks`, before rank 0's runtime does.
  return found;
}

Result<std::unique_ptr<Runtime>> open_ranks(const std::string& model, const EngineFlags& flags,
                                            RuntimeOptions options, const Runtime::Planner& planner,
                                            std::optional<FileId> damaged, CachedFile* cached) {
  SPILLWAY_ASSIGN_OR_RETURN(RanksHere ranks, RanksHere::open(model, flags, options, damaged));
  const ModelToPlan& opened = ranks.opened()[0].model;
  *cached = {opened.cached, opened.table->file_id};
  SPILLWAY_RETURN_IF_ERROR(ranks.make_plans(options.wishes, planner));
  SPILLWAY_RETURN_IF_ERROR(ranks.start_others());
  options.others = [&]() -> Result<std::unique_ptr<OtherRanks>> {
    SPILLWAY_ASSIGN_OR_RETURN(RanksHere::Others others, ranks.others());
    if (options.say) {
      for (const std::string& line : others.plan_lines) options.say(line);
    }
    return std::move(others.ranks);
  };
  return ranks.open_first(options);
}

}  // namespace spillway
