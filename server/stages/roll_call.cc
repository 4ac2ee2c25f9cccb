#include "server/stages/roll_call.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "kernels/base/processors.h"
#include "scheduler/planning/memory_budget.h"
#include "server/stages/stage_notes.h"

namespace spillway {

namespace {

void write(const RankSelf& self, ByteWriter* writer) {
  writer->add_text(self.version);
  writer->add_text(self.host);
  writer->add_text(self.flags);
  writer->add_all(std::span<const int>(self.processors));
  writer->add(self.cores);
  writer->add(static_cast<uint8_t>(self.bound));
}

RankSelf read(ByteReader* reader) {
  RankSelf self;
  self.version = reader->get_text();
  self.host = reader->get_text();
  self.flags = reader->get_text();
  self.processors = reader->get_all<int>();
  self.cores = reader->get<int64_t>();
  self.bound = reader->get<uint8_t>() != 0;
  return self;
}

// Of one list of flags, those that another has not: "--format q8 --max-model-len 512".
std::string flags_only_in(const std::string& one, const std::string& other) {
  std::string only;
  for (size_t at = 0; at < one.size();) {
    const size_t end = std::min(one.find(" --", at), one.size());
    const std::string flag = one.substr(at, end - at);
    if ((" " + other + " ").find(" " + flag + " ") == std::string::npos) only += " " + flag;
    at = end + 1;
  }
  return only.empty() ? " none of these" : only;
}

Status check(const Roll& roll, int64_t stages) {
  const auto ranks = static_cast<int64_t>(roll.ranks.size());
  if (ranks != stages) {
    return invalid_argument(
        "--stages is " + std::to_string(stages) + ", and there " +
        (ranks == 1 ? "is 1 process" : "are " + std::to_string(ranks) + " processes") +
        "; start it with mpirun -np " + std::to_string(stages) + " (or srun --mpi=pmix -n " +
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
      const std::string& first = roll.ranks[0].flags;
      return invalid_argument(roll.name(rank) +
                              " was given other flags:" + flags_only_in(other.flags, first) + "; " +
                              roll.name(0) + " has" + flags_only_in(first, other.flags));
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
  self.processors = allowed_processors();
  self.cores = usable_cores();
  self.bound = std::getenv("OMPI_MCA_orte_bound_at_launch") != nullptr;  // Open MPI 4
  return self;
}

std::string shared_flags(const EngineFlags& flags) {
  const auto format = [](const std::optional<Format>& of) {
    return of ? std::string(format_name(*of)) : "default";
  };
  std::string text = "--stages " + std::to_string(flags.stages) + " --ranks " +
                     std::to_string(flags.rank_count()) + " --format " + format(flags.format) +
                     " --kv-format " + format(flags.kv_format) + " --quantized-compute " +
                     flags.quantized_compute;
  if (flags.max_model_len) text += " --max-model-len " + std::to_string(*flags.max_model_len);
  if (flags.dummy_weights) text += " --dummy-weights --seed " + std::to_string(flags.seed);
  std::string layers;
  for (const int64_t count : flags.stage_layers.value_or(std::vector<int64_t>())) {
    layers += (layers.empty() ? " --stage-layers " : ",") + std::to_string(count);
  }
  return text + layers;
}

std::string Roll::name(int rank) const {
  return "rank " + std::to_string(rank) + " (" + ranks[static_cast<size_t>(rank)].host + ")";
}

int64_t Roll::on_host_of(int rank) const {
  return std::count_if(ranks.begin(), ranks.end(), [&](const RankSelf& other) {
    return other.host == ranks[static_cast<size_t>(rank)].host;
  });
}

int64_t Roll::place_on_host(int rank) const {
  return std::count_if(ranks.begin(), ranks.begin() + rank, [&](const RankSelf& other) {
    return other.host == ranks[static_cast<size_t>(rank)].host;
  });
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
  Status fit;
  for (size_t i = 1; i < notes.size(); ++i) {
    ByteReader reader(notes[i]);
    RankSelf& other = roll.ranks.emplace_back(read(&reader));
    // Another version may say other things of itself, the version first in any case.
    if (!reader.ok() || !reader.left().empty()) {
      fit = invalid_argument(names[i] + " is Spillway " + other.version + ", rank 0 is " +
                             self.version + "; install the same version on all hosts");
    }
  }
  if (fit.ok()) fit = check(roll, stages);
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
  for (size_t rank = 0; rank < roll.ranks.size(); ++rank) {
    const RankSelf& one = roll.ranks[rank];
    if (!one.bound || one.cores > 1) continue;
    return "warning: " + roll.name(static_cast<int>(rank)) +
           " computes with one thread, since mpirun has bound it to one core; with --bind-to none "
           "it "
           "uses all that it may";
  }
  return "";
}

std::string crowding_warning(const Roll& roll, const EngineFlags& flags) {
  for (int rank = 0; rank < static_cast<int>(roll.ranks.size()); ++rank) {
    const int64_t here = roll.on_host_of(rank), cores = roll.ranks[static_cast<size_t>(rank)].cores;
    if (here == 1 || roll.place_on_host(rank) > 0 || flags.threads * here <= cores) continue;
    if (roll.ranks[static_cast<size_t>(rank)].bound) continue;  // Others may have other cores.
    return "warning: " + std::to_string(here) + " stages with --threads " +
           std::to_string(flags.threads) + " each share the " + std::to_string(cores) +
           " cores of " + roll.ranks[static_cast<size_t>(rank)].host +
           "; they will wait for each other, and be slower than predicted";
  }
  return "";
}

Status take_share(const Roll& roll, int rank, EngineFlags* flags) {
  const int64_t here = roll.on_host_of(rank), place = roll.place_on_host(rank);
  const RankSelf& self = roll.ranks[static_cast<size_t>(rank)];
  const int64_t each = flags->rank_count() / (flags->gpus ? here : 1);
  if (flags->threads == 0) {
    std::set<int> processors;  // Of all ranks here: mpirun may have given each its own.
    for (const RankSelf& other : roll.ranks) {
      if (other.host == self.host)
        processors.insert(other.processors.begin(), other.processors.end());
    }
    int64_t cores = count_cores(std::vector<int>(processors.begin(), processors.end()));
    if (const auto quota = cpu_quota())
      cores = std::min(cores, static_cast<int64_t>(std::ceil(*quota)));
    flags->threads = std::min(self.cores, std::max<int64_t>(1, cores / here));
    if (flags->threads < each) {
      return invalid_argument(std::to_string(each) +
                              " ranks need a thread each, and this process has " +
                              std::to_string(flags->threads) + " of the " + std::to_string(cores) +
                              " cores of " + self.host +
                              (here > 1     ? ", which " + std::to_string(here) + " stages share"
                               : self.bound ? ", to which mpirun has bound it (--bind-to none)"
                                            : "") +
                              "; start fewer there, or say --threads " + std::to_string(each));
    }
  }
  if (!flags->host_memory_bytes && here > 1) {
    flags->host_memory_bytes = host_budget(std::nullopt).bytes / static_cast<uint64_t>(here);
    flags->host_memory_is_free = true;
  }
  if (flags->gpus) {
    if (each * here != flags->rank_count()) {
      return invalid_argument("--gpus names " + std::to_string(flags->rank_count()) +
                              " GPUs for the " + std::to_string(here) + " stages on " + self.host +
                              "; name as many for each");
    }
    const auto first = flags->gpus->begin() + place * each;
    flags->gpus = std::vector<int64_t>(first, first + each);
  }
  // With "auto" the index would ask for a GPU where there may be none.
  if (flags->device == "cuda") flags->gpu += place * flags->rank_count();
  return {};
}

}  // namespace spillway
