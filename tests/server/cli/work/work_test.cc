// The flags of `spillway work`. What it does with a database: tests/services/queue_test.py.
#include "server/cli/work/work.h"

#include <catch2/catch.hpp>

namespace spillway::work_test {
namespace {

TEST_CASE("a worker without a database, or with an empty name, is refused") {
  WorkFlags flags;
  CHECK_THAT(std::string(validate(flags).message()), Catch::Contains("SPILLWAY_DATABASE"));
  flags.database = "postgresql:///x";
  CHECK(validate(flags).ok());
  flags.served_model_names = {"m", ""};
  CHECK(validate(flags).code() == Code::kInvalidArgument);
}

TEST_CASE("a database that cannot be used is said before the model is loaded") {
  WorkFlags flags;
  flags.database = "postgresql://u:topsecret@%zz/x";
  WorkSetup setup;
  setup.open = [](const OpenFor&) -> Result<ServedModel> {
    FAIL("the model is not to be opened");
    return Status(Code::kNotFound, "");
  };
  const Status status = run_work(flags, setup);
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK_THAT(std::string(status.message()), !Catch::Contains("topsecret"));
}

}  // namespace
}  // namespace spillway::work_test
