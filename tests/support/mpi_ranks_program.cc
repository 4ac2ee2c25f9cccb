// Started by mpirun, several times over: the cases of a RankGroup among processes. With "die" rank
// 1 kills itself in the middle; with "differ" ranks expect different sizes. Status 0: all was as it
// should. "mail", "mail-die": likewise of a RankMail;
// with "mail-unread" nobody takes what is sent.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/ranks/mpi_mail.h"
#include "kernels/ranks/mpi_ranks.h"
#include "tests/support/mail_cases.h"
#include "tests/support/rank_cases.h"

namespace {

using namespace spillway;

int fail(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  return 1;
}

int run_mail(bool die) {
  Result<std::unique_ptr<RankMail>> opened = mpi_mail();
  if (!opened.ok()) return fail(std::string(opened.status().message()));
  RankMail& mail = *opened.value();
  if (die && mail.rank() == 1) ::kill(::getpid(), SIGKILL);
  if (die) return mail.receive().ok() ? 0 : 1;  // Waits for ever, but for the launcher.
  const std::vector<std::string> wrong = test::run_mail_cases(mail);
  for (const std::string& line : wrong)
    std::fprintf(stderr, "rank %d: %s\n", mail.rank(), line.c_str());
  if (mail.rank() == 0 && wrong.empty()) std::printf("%d ranks: all right\n", mail.size());
  return wrong.empty() ? 0 : 1;
}

// More than MPI sends without the other end's help.
int leave_unread() {
  Result<std::unique_ptr<RankMail>> opened = mpi_mail();
  if (!opened.ok()) return fail(std::string(opened.status().message()));
  RankMail& mail = *opened.value();
  for (int to = 0; to < mail.size(); ++to) {
    if (to != mail.rank()) mail.post(to, std::vector<std::byte>(1 << 20));
  }
  return 0;
}

int run(const std::string& what) {
  if (!started_by_mpi()) return fail("mpirun did not start this, by its environment");
  if (what == "mail" || what == "mail-die") return run_mail(what == "mail-die");
  if (what == "mail-unread") return leave_unread();
  Result<std::unique_ptr<RankGroup>> opened = mpi_ranks();
  if (!opened.ok()) return fail(std::string(opened.status().message()));
  RankGroup& ranks = *opened.value();
  const auto device = open_cpu_device(1).value();
  if (what == "die" || what == "differ") {
    const auto stream = device->new_stream("rank");
    std::vector<std::byte> data(1024);
    if (what == "differ") {
      if (ranks.rank() == 0) {
        if (!ranks.send(*stream, data.data(), 512, 1).ok()) return fail("nothing was sent");
        // Waits for ever, but for the launcher. (If it ended here, Open MPI 4.1's mpirun would
        // sometimes hang: one process in MPI_Finalize while another one aborts.)
        return ranks.receive(*stream, data.data(), 1, 1).ok() ? 0 : 1;
      }
      const Status status = ranks.receive(*stream, data.data(), 256, 0);
      std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
      return status.code() == Code::kInvalidArgument ? 0 : 1;
    }
    for (int i = 0;; ++i) {
      if (i == 100 && ranks.rank() == 1) ::kill(::getpid(), SIGKILL);
      std::vector<std::byte> all(static_cast<size_t>(ranks.size()));
      const Status status = ranks.all_gather(*stream, data.data(), all.data(), 1);
      if (!status.ok()) return fail(std::string(status.message()));
    }
  }
  const std::vector<std::string> wrong = test::run_rank_cases(ranks, *device);
  for (const std::string& line : wrong) {
    std::fprintf(stderr, "rank %d of %d: %s\n", ranks.rank(), ranks.size(), line.c_str());
  }
  if (ranks.rank() == 0 && wrong.empty()) std::printf("%d ranks: all right\n", ranks.size());
  return wrong.empty() ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  return run(count > 1 ? arguments[1] : "");
}
