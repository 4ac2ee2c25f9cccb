// Mail between ranks that are threads of one process: `--ranks N`, `--gpus`, and tests of all that
// is built on RankMail.
#pragma once

#include <memory>
#include <vector>

#include "kernels/rank_mail.h"

namespace spillway {

// One for each rank. When one is destroyed the others get kDeviceLost once they have received what
// it sent. REQUIRES: size > 0.
std::vector<std::unique_ptr<RankMail>> thread_mail(int size);

}  // namespace spillway
