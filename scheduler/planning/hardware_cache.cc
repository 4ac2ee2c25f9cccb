#include "scheduler/planning/hardware_cache.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>

#include "kernels/base/processors.h"
#include "offload/io/file.h"
#include "offload/io/spill_file.h"
#include "offload/model_source.h"
#include "policy/hardware_json.h"
#include "policy/rank_hardware.h"
#include "scheduler/planning/machine.h"
#include "scheduler/planning/memory_budget.h"

namespace spillway {

namespace {

// The CPU's model name in /proc/cpuinfo; "CPU" if it has none.
std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "CPU";
}

std::string cores_of_model() {
  return std::to_string(usable_cores()) + " x " + cpu_model();
}

// Converts a name to a plain file name: lower-case letters and digits, with dashes between them.
std::string slug(const std::string& text) {
  constexpr size_t kLengthMax = 60;
  std::string out;
  for (const char c : text) {
    if (out.size() == kLengthMax) break;
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!out.empty() && out.back() != '-') {
      out += '-';
    }
  }
  while (!out.empty() && out.back() == '-') out.pop_back();
  return out;
}

// A name for the file system on which `path` is, or will be: "259-1".
std::string disk_number(const std::string& path) {
  std::error_code error;
  std::filesystem::path there = std::filesystem::absolute(path, error);
  struct stat info {};
  while (::stat(there.c_str(), &info) != 0) {
    if (there == there.parent_path()) return "none";
    there = there.parent_path();
  }
  return std::to_string(major(info.st_dev)) + "-" + std::to_string(minor(info.st_dev));
}

// "disk-259-1", "disks-259-1-259-2", "no-disk". Folders of one disk are as fast as one of them.
std::string disk_name(const std::vector<std::string>& paths) {
  std::set<std::string> numbers;
  for (const std::string& path : paths) {
    const std::string number = disk_number(path);
    if (number == "none") return "no-disk";
    numbers.insert(number);
  }
  if (numbers.empty()) return "no-disk";
  std::string name = numbers.size() == 1 ? "disk" : "disks";
  for (const std::string& number : numbers) name += "-" + number;
  return name;
}

}  // namespace

std::string machine_name(const Device& device) {
  if (!device.discrete()) return cores_of_model();
  return std::string(device.name()) + ", " + cores_of_model();
}

Result<std::string> profile_path(const Device& device, const std::vector<std::string>& disk_dirs) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::string cache, default_cache_directory());
  // The CPU's threads are part of its name.
  return cache + "/hardware-" + slug(cores_of_model()) + "-" + slug(std::string(device.name())) +
         "-" + disk_name(disk_dirs) + ".json";
}

Result<std::optional<HardwareProfile>> cached_profile(const Device& device,
                                                      const std::vector<std::string>& disk_dirs) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::string path, profile_path(device, disk_dirs));
  const Result<std::string> text = read_small_file(path, kHardwareBytesMax);
  if (text.status().code() == Code::kNotFound) return std::optional<HardwareProfile>();
  if (!text.ok()) return text.status();
  SPILLWAY_ASSIGN_OR_RETURN(HardwareProfile profile, parse_hardware_profile(text.value(), path));
  return std::optional<HardwareProfile>(std::move(profile));
}

Result<std::optional<HardwareProfile>> current_profile(const Device& device,
                                                       const std::vector<std::string>& disk_dirs) {
  SPILLWAY_ASSIGN_OR_RETURN(auto profile, cached_profile(device, disk_dirs));
  if (!profile) return profile;
  const auto now = [](Figure* figure, uint64_t bytes) {
    figure->value = static_cast<double>(bytes);
  };
  now(&profile->host.memory_free_bytes, available_host_bytes());
  now(&profile->compute.memory_free_bytes, device.memory().free_bytes);
  const Result<uint64_t> free = free_striped_bytes(disk_dirs);
  if (free.ok()) now(&profile->disk.free_bytes, free.value());
  return profile;
}

Result<std::optional<HardwareProfile>> rank_profile(const Device& own, int64_t ranks,
                                                    const EngineFlags& flags) {
  const std::vector<std::string> folders = scratch_directories(flags.disk_dirs);
  if (ranks == 1) return current_profile(own, folders);
  // It is known by the threads of all.
  SPILLWAY_ASSIGN_OR_RETURN(const auto device, open_device(device_choice(flags)));
  SPILLWAY_ASSIGN_OR_RETURN(std::optional<HardwareProfile> machine,
                            current_profile(*device, folders));
  if (machine) machine = rank_hardware(*machine, ranks);
  return machine;
}

Result<std::string> keep_profile(const Device& device, const std::vector<std::string>& disk_dirs,
                                 const std::string& json) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::string path, profile_path(device, disk_dirs));
  std::error_code error;
  const std::string folder = std::filesystem::path(path).parent_path().string();
  std::filesystem::create_directories(folder, error);
  if (error) {
    return io_error("make the cache folder " + folder + " (SPILLWAY_CACHE names another)",
                    error.value());
  }
  SPILLWAY_RETURN_IF_ERROR(replace_file(path, json));
  return path;
}

}  // namespace spillway
