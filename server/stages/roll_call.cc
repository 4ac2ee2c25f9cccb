#include "server/stages/roll_call.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/processors.h"
#include "scheduler/planning/memory_budget.h"
#include "server/stages/stage_notes.h"

namespace spillway {

namespace {

void write(const RankSelf& self, ByteWriter* writer) {
  writer->add_text(self.version);
  writer->add_text(self.host);
  writer->add_text(self.flags);
  writer->add(self.cores);
  writer->add(self.cores_all);
}

RankSelf read(ByteReader* reader) {
  RankSelf self;
  self.version = reader->get_text();
  self.host = reader->get_text();
  self.flags = reader->get_text();
  self.cores = reader->get<int64_t>();
  self.cores_all = reader->get<int64_t>();
  return self;
}

Status check(const Roll& roll, int64_t stages) {
  const auto ranks = static_cast<int64_t>(roll.ranks.size());
  if (ranks != stages) {
    return invalid_argument(
        "--stages is " + std::to_string(stages) + ", and there " +
        (ranks == 1 ? "is 1 process" : "are " + std::to_string(ranks) + " processes") +
        "; start it with mpirun -np " + std::to_string(stages) + " (or srun -n " +
        std::to_string(stages) + ")");
  }
  for (int rank = 1; rank < ranks; ++rank) {
    const RankSelf& other = roll.ranks[static_cast<size_t>(rank)];
    if (other.version != roll.ranks[0].version) {
      return invalid_argument(roll.name(rank) + " is Spillway " + other.version + ", " +
                              roll.name(0) + " is " + roll.ranks[0].version +
                              "; install the same version on all hosts");
    }
    if (other.flags != roll.ranks[0].flags) {
      return invalid_argument(roll.name(rank) + " was given other flags: " + other.flags +
                              "; those of " + roll.name(0) + " are " + roll.ranks[0].flags);
    }
  }
  return {};
}

}  // namespace

RankSelf rank_self(const EngineFlags& flags) {
  RankSelf self;
  char host[256] = "";
  if (::gethostname(host, sizeof host - 1) == 0) self.host = host;
  self.flags = shared_flags(flags);
  self.cores = usable_cores();
  std::vector<int> online(static_cast<size_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN))));
  std::iota(online.begin(), online.end(), 0);
  self.cores_all = count_cores(online);
  // Ranks of one container share its quota.
  if (const auto quota = cpu_quota()) {
    self.cores_all =
        std::min(self.cores_all, std::max<int64_t>(1, std::llround(std::ceil(*quota))));
  }
  return self;
}

std::string shared_flags(const EngineFlags& flags) {
  const auto format = [](const std::optional<Format>& of) {
    return of ? std::string(format_name(*of)) : "default";
  };
  std::string text = "--stages " + std::to_string(flags.stages) + " --format " +
                     format(flags.format) + " --kv-format " + format(flags.kv_format) +
                     " --quantized-compute " + flags.quantized_compute;
  if (flags.max_model_len) text += " --max-model-len " + std::to_string(*flags.max_model_len);
  if (flags.dummy_weights) text += " --dummy-weights --seed " + std::to_string(flags.seed);
  for (const int64_t count : flags.stage_layers.value_or(std::vector<int64_t>())) {
    text += " --stage-layers " + std::to_string(count);
  }
  return text;
}

std::string Roll::name(int rank) const {
  return "rank " + std::to_string(rank) + " (" + ranks[static_cast<size_t>(rank)].host + ")";
}

int64_t Roll::on_host_of(int rank) const {
  const std::string& host = ranks[static_cast<size_t>(rank)].host;
  return std::count_if(ranks.begin(), ranks.end(),
                       [&](const RankSelf& other) { return other.host == host; });
}

Result<Roll> call_roll(RankMail& mail, const RankSelf& self, int64_t stages) {
  Roll roll;
  if (mail.rank() > 0) {
    ByteWriter contents;
    write(self, &contents);
    post_note(mail, 0, {}, std::move(contents));
    SPILLWAY_ASSIGN_OR_RETURN(const std::vector<std::byte> note, receive_note(mail));
    ByteReader reader(note);
    for (int i = 0; i < mail.size(); ++i) roll.ranks.push_back(read(&reader));
    if (!reader.ok()) return corruption("the roll of ranks is damaged");
    return roll;
  }
  std::vector<std::string> names;
  for (int i = 0; i < mail.size(); ++i) names.push_back("rank " + std::to_string(i));
  SPILLWAY_ASSIGN_OR_RETURN(const auto notes, gather_notes(mail, names));
  roll.ranks.push_back(self);
  for (size_t i = 1; i < notes.size(); ++i) {
    ByteReader reader(notes[i]);
    roll.ranks.push_back(read(&reader));
    if (!reader.ok()) {
      // Another version may say other things of itself.
      return invalid_argument(names[i] + " is another version of Spillway; install the same");
    }
  }
  const Status fit = check(roll, stages);
  for (int rank = 1; rank < mail.size(); ++rank) {
    ByteWriter contents;
    for (const RankSelf& one : roll.ranks) write(one, &contents);
    post_note(mail, rank, fit, std::move(contents));
  }
  SPILLWAY_RETURN_IF_ERROR(fit);
  return roll;
}

std::string binding_warning(const Roll& roll, const EngineFlags& flags) {
  if (flags.threads > 0) return "";
  for (int rank = 0; rank < static_cast<int>(roll.ranks.size()); ++rank) {
    const RankSelf& one = roll.ranks[static_cast<size_t>(rank)];
    if (one.cores * roll.on_host_of(rank) >= one.cores_all) continue;
    return "warning: " + roll.name(rank) + " may use " + std::to_string(one.cores) + " of " +
           std::to_string(one.cores_all) +
           " cores, since it was bound to them; with mpirun --bind-to none it uses all";
  }
  return "";
}

void take_share(const Roll& roll, int rank, EngineFlags* flags) {
  const int64_t here = roll.on_host_of(rank);
  const RankSelf& self = roll.ranks[static_cast<size_t>(rank)];
  if (flags->threads == 0) {
    // mpirun may have bound each rank to cores of its own.
    flags->threads = std::min(self.cores, std::max<int64_t>(1, self.cores_all / here));
  }
  if (!flags->host_memory_bytes && here > 1) {
    flags->host_memory_bytes = host_budget(std::nullopt).bytes / static_cast<uint64_t>(here);
  }
}

}  // namespace spillway
