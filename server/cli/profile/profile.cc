#include "server/cli/profile/profile.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>

#include "offload/io/file.h"
#include "policy/hardware_json.h"
#include "scheduler/planning/hardware_cache.h"
#include "scheduler/planning/machine.h"
#include "server/cli/common/console.h"
#include "server/cli/common/interrupt.h"
#include "server/cli/flags/engine_settings.h"
#include "server/cli/profile/profile_measure.h"

namespace spillway {

namespace {

// ISO 8601, UTC.
std::string now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char text[32];
  const size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return std::string(text, length);
}

// Checked before measuring for a minute, not after it.
Status check_writable(const std::string& path) {
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) folder = ".";
  if (::access(folder.c_str(), W_OK) != 0) return io_error("--output " + path, errno);
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return invalid_argument("--output " + path + ": is a directory");
  }
  return {};
}

// The text of a profile that parses: no rate is zero or infinite.
Result<std::string> text_of(const HardwareProfile& profile) {
  std::string text = hardware_profile_json(profile);
  const Status readable = parse_hardware_profile(text, "measured").status();
  if (!readable.ok()) return Status(Code::kIoError, std::string(readable.message()));
  return text;
}

}  // namespace

Status run_profile(const ProfileFlags& flags, const std::function<bool()>& keep_going) {
  SPILLWAY_ASSIGN_OR_RETURN(const auto device, open_device({flags.device, flags.gpu, flags.threads,
                                                            flags.quantized_compute}));
  ProfileOptions options;
  options.seconds = static_cast<double>(flags.seconds);
  options.threads = flags.threads;
  options.disk_dirs = scratch_directories(flags.disk_dirs);
  options.keep_going = [&] { return !keep_going || keep_going(); };
  options.say = say;
  if (options.disk_dirs.empty()) {
    return invalid_argument("there is no home directory for scratch files; give --disk-dir");
  }
  if (!flags.output.empty()) SPILLWAY_RETURN_IF_ERROR(check_writable(flags.output));
  HardwareProfile profile;
  profile.name = machine_name(*device);
  // The disk first, since a folder that cannot be used shows at once.
  SPILLWAY_RETURN_IF_ERROR(measure_disk(*device, options, &profile).at("measuring the disk"));
  SPILLWAY_RETURN_IF_ERROR(measure_processors(*device, options, &profile));
  profile.compute.in_int8 = device->in_int8(Format::kQ4);
  profile.measured_at = now();
  SPILLWAY_ASSIGN_OR_RETURN(const std::string text, text_of(profile));
  const std::string shown = flags.json ? text : profile_table(profile);
  std::fwrite(shown.data(), 1, shown.size(), stdout);
  std::fflush(stdout);
  if (!flags.output.empty()) SPILLWAY_RETURN_IF_ERROR(replace_file(flags.output, text));
  // A machine without a home directory still gets its figures.
  const Result<std::string> kept = keep_profile(*device, options.disk_dirs, text);
  say(kept.ok() ? "Kept in " + kept.value()
                : "warning: not kept for later: " + std::string(kept.status().message()));
  return {};
}

Command profile_command() {
  auto flags = std::make_shared<ProfileFlags>();
  Command command;
  command.name = "profile";
  command.summary = "measure what this machine can do, for planning";
  command.description =
      "Measures memory, matrix products, attention, the link to a device with memory of its own, "
      "and the disk where spilled blocks would lie, in about --seconds. Every figure is the median "
      "of several samples and comes with the lowest and the highest. The profile is kept in the "
      "cache folder for `spillway plan`; run it when nothing else runs, and again when the machine "
      "has changed.";
  Settings& settings = command.settings;
  settings.group("Profile");
  settings.add_text("output", &flags->output, "FILE", "also write the profile there, as JSON");
  settings.add_switch("json", &flags->json, "print the profile as JSON instead of a table");
  settings.add_integer("seconds", &flags->seconds, 1, 600,
                       "about how long to measure; less takes fewer and shorter samples");
  settings.group("What is measured");
  settings.add_choice("device", &flags->device, {"auto", "cpu", "cuda"}, "what computes");
  settings.add_integer("gpu", &flags->gpu, 0, 63, "which CUDA device, where there are several");
  settings.add_integer("threads", &flags->threads, 0, 1024, "threads that compute; 0: one a core");
  settings.add_choice(
      "quantized-compute", &flags->quantized_compute, {"auto", "int8", "float"},
      "how products with quantised weights are computed; int8 and float have profiles of "
      "their own");
  settings.add_choice("q4-compute", &flags->quantized_compute, {"auto", "int8", "float"},
                      "another name of --quantized-compute");
  settings.same("quantized-compute", "q4-compute");
  add_disk_dirs(settings, &flags->disk_dirs, "where spilled blocks would live");
  command.run = [flags] {
    const InterruptGuard guard;
    return report("profile", run_profile(*flags, [&] { return !guard.interrupted(); }));
  };
  return command;
}

}  // namespace spillway
