#include "server/cli/batch/batch_identity.h"

#include <catch2/catch.hpp>
#include <set>

namespace spillway::batch_identity_test {
namespace {

TEST_CASE("runs have one name if nothing differs that changes answers") {
  const auto name = [](const std::string& input, const std::string& model,
                       const EngineFlags& flags) {
    return run_id_of(batch_head_of(input, model, result_settings(flags)));
  };
  const std::string first = name("in", "model", {});
  CHECK(first.size() == 16);
  EngineFlags other;
  other.block = 7;
  other.threads = 3;
  other.host_memory_bytes = 1;
  CHECK(name("in", "model", other) == first);
  std::set<std::string> names = {first, name("in2", "model", {}), name("in", "model2", {})};
  const auto add = [&](auto field, auto value) {
    EngineFlags flags;
    flags.*field = value;
    names.insert(name("in", "model", flags));
  };
  add(&EngineFlags::seed, 1);
  add(&EngineFlags::format, Format::kBF16);
  add(&EngineFlags::kv_format, Format::kQ4);
  add(&EngineFlags::kv_rule, "h2o");
  add(&EngineFlags::kv_sink, 3);
  add(&EngineFlags::kv_ratio_of, "prompt");
  add(&EngineFlags::kv_snap, "max");
  add(&EngineFlags::device, "cpu");
  CHECK(names.size() == 11);
}

TEST_CASE("a head without the model is the rest of the one with it") {
  JournalHead with = batch_head_of("in", "model", {{"seed", "1"}});
  const JournalHead without = batch_head_of("in", std::nullopt, {{"seed", "1"}});
  CHECK(with.size() == 3);
  with.erase(with.begin() + 1);
  CHECK(with == without);
}

}  // namespace
}  // namespace spillway::batch_identity_test
