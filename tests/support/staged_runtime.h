// A model on pipeline stages that are threads of this process, each of which may be several ranks.
#pragma once

#include <catch2/catch.hpp>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ranks/thread_mail.h"
#include "server/stages/staged_runtime.h"

namespace spillway::test {

class StagedRuntime {
 public:
  // REQUIREs that the model opens. `flags` are those of each stage.
  StagedRuntime(const std::string& checkpoint, const EngineFlags& flags) {
    std::vector<std::unique_ptr<RankMail>> mail = thread_mail(static_cast<int>(flags.stages));
    for (size_t i = 1; i < mail.size(); ++i) {
      followed_.push_back(
          std::async(std::launch::async,
                     [own = std::shared_ptr<RankMail>(std::move(mail[i])), flags, checkpoint] {
                       const auto joined = join_stages(own, flags);
                       return joined.ok() ? follow_stages(*joined.value(), checkpoint, flags)
                                          : joined.status();
                     }));
    }
    auto joined = join_stages(std::move(mail[0]), flags);
    REQUIRE(joined.ok());
    rank_ = std::move(joined).value();
    auto opened = open_stages(*rank_, checkpoint, flags, {});
    INFO(opened.status().message());
    REQUIRE(opened.ok());
    runtime_ = std::move(opened->runtime);
  }
  ~StagedRuntime() { (void)end(); }

  Runtime& runtime() { return *runtime_; }

  // Of the first stage that had an error of its own.
  Status end() {
    runtime_.reset();
    rank_.reset();
    Status first;
    for (auto& one : followed_) {
      Status status = one.get();
      if (first.ok()) first = std::move(status);
    }
    followed_.clear();
    return first;
  }

 private:
  std::vector<std::future<Status>> followed_;
  std::unique_ptr<StageRank> rank_;
  std::unique_ptr<Runtime> runtime_;
};

}  // namespace spillway::test
