// What every kind of RankMail must do: for threads in one process, and for processes.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "kernels/rank_mail.h"

namespace spillway::test {

// Every rank sends each other one messages of sizes from nothing to some megabytes, and reads what
// the others sent. Returns what was wrong, a line each. Call it on all ranks.
inline std::vector<std::string> run_mail_cases(RankMail& mail) {
  constexpr size_t kSizes[] = {0, 1, 100, 5000, 70'000, 9'000'000, 3};
  const auto byte_of = [](int from, int to, size_t number) {
    return static_cast<std::byte>(from * 50 + to * 10 + static_cast<int>(number));
  };
  for (size_t number = 0; number < std::size(kSizes); ++number) {
    for (int to = 0; to < mail.size(); ++to) {
      if (to == mail.rank()) continue;
      mail.post(to, std::vector<std::byte>(kSizes[number], byte_of(mail.rank(), to, number)));
    }
  }
  std::vector<std::string> wrong;
  std::map<int, size_t> next;  // By sender
  const size_t all = std::size(kSizes) * static_cast<size_t>(mail.size() - 1);
  for (size_t i = 0; i < all; ++i) {
    const auto message = mail.receive();
    if (!message.ok()) return {std::string(message.status().message())};
    const size_t number = next[message->from]++;
    const std::vector<std::byte> expected(kSizes[number % std::size(kSizes)],
                                          byte_of(message->from, mail.rank(), number));
    if (message->bytes != expected) {
      wrong.push_back("message " + std::to_string(number) + " of rank " +
                      std::to_string(message->from) + " is another one");
    }
  }
  return wrong;
}

}  // namespace spillway::test
