#include "kernels/ranks/thread_mail.h"

#include <catch2/catch.hpp>
#include <thread>

#include "tests/support/mail_cases.h"

namespace spillway::thread_mail_test {
namespace {

TEST_CASE("mail of threads arrives in order, whatever its size") {
  const int size = GENERATE(1, 2, 4);
  const auto mail = thread_mail(size);
  std::vector<std::vector<std::string>> wrong(static_cast<size_t>(size));
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < wrong.size(); ++rank) {
    ranks.emplace_back([&, rank] { wrong[rank] = test::run_mail_cases(*mail[rank]); });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const auto& lines : wrong) CHECK(lines.empty());
}

TEST_CASE("a rank that has gone is told once its mail is read") {
  auto mail = thread_mail(2);
  mail[1]->post(0, std::vector<std::byte>(3));
  mail[1].reset();
  CHECK(mail[0]->receive()->bytes.size() == 3);
  CHECK(mail[0]->receive().status().code() == Code::kDeviceLost);
}

}  // namespace
}  // namespace spillway::thread_mail_test
