// What ranks tell each other while they open a model: a status, and bytes for whoever waits for
// them. Rank 0 talks with every other rank, and they with it alone.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/byte_message.h"
#include "kernels/base/status.h"
#include "kernels/rank_mail.h"

namespace spillway {

void post_note(RankMail& mail, int to, const Status& status, ByteWriter contents = {});

// On another rank than 0: the next note of rank 0. Its status is the error; kCancelled: rank 0 has
// ended.
Result<std::vector<std::byte>> receive_note(RankMail& mail);

// On rank 0: a note of every other rank, by rank (that of rank 0 is empty). The first error, with
// the rank's name in front. `names`: by rank.
Result<std::vector<std::vector<std::byte>>> gather_notes(RankMail& mail,
                                                         std::span<const std::string> names);

}  // namespace spillway
