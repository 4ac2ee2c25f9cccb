#include "policy/hardware_json.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "kernels/base/json_reader.h"
#include "kernels/base/quote.h"
#include "kernels/base/strict_json.h"

namespace spillway {

namespace {

using nlohmann::json;

constexpr int64_t kVersion = 1;
constexpr const char* kQ4Attention = "decode_attention_q4_bytes_per_second";
constexpr const char* kQ8Attention = "decode_attention_q8_bytes_per_second";
constexpr const char* kSharedAttention = "decode_attention_shared_bytes_per_second";
constexpr const char* kSharedQ4Attention = "decode_attention_q4_shared_bytes_per_second";
constexpr const char* kSharedQ8Attention = "decode_attention_q8_shared_bytes_per_second";
constexpr size_t kTextBytesMax = 1000;
constexpr size_t kItemsMax = 1024;
constexpr int64_t kSizeMax = int64_t{1} << 40;  // Rows, columns, bytes of a request
constexpr int64_t kSamplesMax = 1'000'000;
constexpr double kValueMax = 1e18;

// One pass over a profile's text. The first failure is kept; values read after it are meaningless.
class Parser {
 public:
  explicit Parser(std::string_view what) : what_(what) {}

  Result<HardwareProfile> parse(const json& root) {
    HardwareProfile profile;
    JsonReader reader(root, what_);
    reader.version(kVersion, "a hardware profile", "'spillway profile' makes one");
    reader.only({"version", "name", "measured_at", "compute", "host", "link", "disk"});
    profile.name = reader.string("name", kTextBytesMax);
    profile.measured_at = reader.string_or("measured_at", kTextBytesMax, "");
    const json& of_compute = reader.object("compute");
    const json& of_host = reader.object("host");
    const json& of_disk = reader.object("disk");
    SPILLWAY_RETURN_IF_ERROR(reader.status());
    profile.compute = compute(of_compute);
    profile.host = host(of_host);
    if (profile.compute.kind == "cuda") {
      const json& of_link = reader.object("link");
      keep(reader);
      profile.link = link(of_link);
    } else if (reader.has("link")) {
      reader.fail("link is there, and compute.kind is not 'cuda'");
    }
    profile.disk = disk(of_disk);
    keep(reader);
    if (!first_.ok()) return first_;
    return profile;
  }

 private:
  JsonReader at(const json& object, const std::string& path) const {
    return JsonReader(object, what_ + ": " + path);
  }
  void keep(const JsonReader& reader) {
    if (first_.ok()) first_ = reader.status();
  }

  Figure figure(JsonReader& parent, const std::string& path, const char* key) {
    JsonReader reader = at(parent.object(key), path + "." + key);
    Figure figure;
    figure.value = reader.number("value", 1, kValueMax);
    if (reader.has("source")) {
      reader.only({"value", "source"});
      figure.source = reader.string("source", kTextBytesMax);
      if (figure.source.empty()) reader.fail("source is empty");
    } else {
      reader.only({"value", "low", "high", "samples"});
      figure.low = reader.number("low", 1, kValueMax);
      figure.high = reader.number("high", 1, kValueMax);
      figure.samples = static_cast<int>(reader.integer("samples", 1, kSamplesMax));
      if (figure.low > figure.value) reader.fail("low is above value");
      if (figure.high < figure.value) reader.fail("high is below value");
    }
    keep(parent);  // Report a missing key before whatever is missing inside it.
    keep(reader);
    return figure;
  }

  // Reads both memory figures of `compute` or `host`.
  void memory(JsonReader& reader, const std::string& path, Figure* all, Figure* free) {
    *all = figure(reader, path, "memory_bytes");
    *free = figure(reader, path, "memory_free_bytes");
    if (free->value > all->value) reader.fail("memory_free_bytes is above memory_bytes");
  }

  HardwareProfile::Compute compute(const json& object) {
    HardwareProfile::Compute compute;
    JsonReader reader = at(object, "compute");
    reader.only({"kind", "memory_bytes", "memory_free_bytes", "memory_read_bytes_per_second",
                 "matrix", "prompt_attention_flops_per_second", "decode_attention_bytes_per_second",
                 kQ4Attention, kQ8Attention, kSharedAttention, kSharedQ4Attention,
                 kSharedQ8Attention, "small_ops_per_second", "quantized_compute", "q4_compute",
                 "peaks"});
    compute.kind = reader.string("kind", kTextBytesMax);
    if (compute.kind != "cpu" && compute.kind != "cuda") {
      reader.fail("kind is " + in_quotes(compute.kind) + ", must be 'cpu' or 'cuda'");
    }
    memory(reader, "compute", &compute.memory_bytes, &compute.memory_free_bytes);
    compute.memory_read = figure(reader, "compute", "memory_read_bytes_per_second");
    const json& list = reader.array("matrix", kItemsMax);
    if (list.empty()) reader.fail("matrix has no figures");
    for (size_t i = 0; i < list.size(); ++i) compute.matrix.push_back(matrix(list[i], i));
    rename_q8(compute.matrix);
    compute.prompt_attention = figure(reader, "compute", "prompt_attention_flops_per_second");
    compute.decode_attention = figure(reader, "compute", "decode_attention_bytes_per_second");
    const auto optional = [&](const char* name, Figure* found) {  // Older profiles lack them.
      if (reader.has(name)) *found = figure(reader, "compute", name);
    };
    optional(kQ4Attention, &compute.decode_attention_q4);
    optional(kQ8Attention, &compute.decode_attention_q8);
    optional(kSharedAttention, &compute.decode_attention_shared);
    optional(kSharedQ4Attention, &compute.decode_attention_q4_shared);
    optional(kSharedQ8Attention, &compute.decode_attention_q8_shared);
    if (reader.has("small_ops_per_second")) {  // Older profiles lack it, and those of a CPU
      compute.small_ops = figure(reader, "compute", "small_ops_per_second");
    }
    for (const char* name : {"quantized_compute", "q4_compute"}) {  // The old name
      if (!reader.has(name)) continue;
      const std::string how = reader.string(name, kTextBytesMax);
      if (how != "int8") {
        reader.fail(std::string(name) + " is " + in_quotes(how) + ", must be 'int8'");
      }
      compute.in_int8 = true;
    }
    if (reader.has("peaks")) compute.peaks = peaks(reader);  // Older profiles lack it
    keep(reader);
    return compute;
  }

  // Older profiles call q8_1 what is q8 now: they have figures of q8 alone.
  void rename_q8(std::vector<MatrixFigure>& figures) const {
    if (heights_.contains(Format::kQ8_1)) return;
    for (MatrixFigure& figure : figures) {
      if (figure.format == Format::kQ8) figure.format = Format::kQ8_1;
    }
  }

  std::vector<PeakFigure> peaks(JsonReader& parent) {
    std::vector<PeakFigure> figures;
    std::set<std::string> seen;
    const json& list = parent.array("peaks", kItemsMax);
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string path = "compute.peaks[" + std::to_string(i) + "]";
      JsonReader reader = at(list[i], path);
      reader.only({"arithmetic", "instruction", "operations_per_second"});
      PeakFigure peak;
      peak.arithmetic = reader.string("arithmetic", kTextBytesMax);
      if (peak.arithmetic != "f32" && peak.arithmetic != "bf16" && peak.arithmetic != "int8") {
        reader.fail("arithmetic is " + in_quotes(peak.arithmetic) + ", must be f32, bf16 or int8");
      }
      peak.instruction = reader.string("instruction", kTextBytesMax);
      peak.rate = figure(reader, path, "operations_per_second");
      if (!seen.insert(peak.arithmetic).second) reader.fail("is there twice");
      keep(reader);
      figures.push_back(std::move(peak));
    }
    return figures;
  }

  MatrixFigure matrix(const json& object, size_t index) {
    const std::string path = "compute.matrix[" + std::to_string(index) + "]";
    MatrixFigure matrix;
    JsonReader reader = at(object, path);
    reader.only({"format", "rows", "outputs", "inputs", "flops_per_second"});
    const std::string format = reader.string("format", kTextBytesMax);
    const auto known = format_of_name(format);
    if (!known) {
      reader.fail("format is " + in_quotes(format) + ", must be " + format_names(", ", " or "));
    }
    matrix.format = known.value_or(Format::kF32);
    matrix.rows = reader.integer("rows", 1, kSizeMax);
    matrix.outputs = reader.integer("outputs", 1, kSizeMax);
    matrix.inputs = reader.integer("inputs", 1, kSizeMax);
    matrix.rate = figure(reader, path, "flops_per_second");
    int64_t& height = heights_[matrix.format];
    if (matrix.rows < height) reader.fail("rows are less than those before it");
    height = matrix.rows;
    if (!seen_.emplace(matrix.format, matrix.rows, matrix.outputs, matrix.inputs).second) {
      reader.fail("is there twice");
    }
    keep(reader);
    return matrix;
  }

  HardwareProfile::Host host(const json& object) {
    HardwareProfile::Host host;
    JsonReader reader = at(object, "host");
    reader.only({"memory_bytes", "memory_free_bytes", "memory_read_bytes_per_second",
                 "decode_attention_bytes_per_second"});
    memory(reader, "host", &host.memory_bytes, &host.memory_free_bytes);
    host.memory_read = figure(reader, "host", "memory_read_bytes_per_second");
    host.decode_attention = figure(reader, "host", "decode_attention_bytes_per_second");
    keep(reader);
    return host;
  }

  HardwareProfile::Link link(const json& object) {
    HardwareProfile::Link link;
    JsonReader reader = at(object, "link");
    reader.only({"to_device_bytes_per_second", "to_host_bytes_per_second", "both_bytes_per_second",
                 "small_copies", "round_trips_per_second"});
    link.to_device = figure(reader, "link", "to_device_bytes_per_second");
    link.to_host = figure(reader, "link", "to_host_bytes_per_second");
    link.both = figure(reader, "link", "both_bytes_per_second");
    if (reader.has("small_copies")) link.small = copies(reader);  // Older profiles lack it
    if (reader.has("round_trips_per_second")) {                   // And this
      link.round_trips = figure(reader, "link", "round_trips_per_second");
    }
    keep(reader);
    return link;
  }

  std::vector<CopyFigure> copies(JsonReader& parent) {
    std::vector<CopyFigure> figures;
    const json& list = parent.array("small_copies", kItemsMax);
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string path = "link.small_copies[" + std::to_string(i) + "]";
      JsonReader reader = at(list[i], path);
      reader.only({"bytes", "to_device_bytes_per_second", "to_host_bytes_per_second"});
      CopyFigure copy;
      copy.bytes = static_cast<uint64_t>(reader.integer("bytes", 1, kSizeMax));
      copy.to_device = figure(reader, path, "to_device_bytes_per_second");
      copy.to_host = figure(reader, path, "to_host_bytes_per_second");
      keep(reader);
      figures.push_back(copy);
    }
    return figures;
  }

  HardwareProfile::Disk disk(const json& object) {
    HardwareProfile::Disk disk;
    JsonReader reader = at(object, "disk");
    reader.only({"free_bytes", "read", "write", "processor_bytes_per_second"});
    disk.free_bytes = figure(reader, "disk", "free_bytes");
    disk.read = requests(reader, "read");
    disk.write = requests(reader, "write");
    constexpr const char* kProcessor = "processor_bytes_per_second";  // Older profiles lack it
    if (reader.has(kProcessor)) disk.processor = figure(reader, "disk", kProcessor);
    keep(reader);
    return disk;
  }

  std::vector<DiskFigure> requests(JsonReader& parent, const char* key) {
    std::vector<DiskFigure> figures;
    std::set<std::pair<uint64_t, int>> seen;
    const json& list = parent.array(key, kItemsMax);
    if (list.empty()) parent.fail(std::string(key) + " has no figures");
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string path = "disk." + std::string(key) + "[" + std::to_string(i) + "]";
      JsonReader reader = at(list[i], path);
      reader.only({"block_bytes", "depth", "bytes_per_second"});
      DiskFigure figure_of_size;
      figure_of_size.block_bytes =
          static_cast<uint64_t>(reader.integer("block_bytes", 1, kSizeMax));
      figure_of_size.depth = static_cast<int>(reader.integer("depth", 1, 1 << 20));
      figure_of_size.rate = figure(reader, path, "bytes_per_second");
      if (!seen.emplace(figure_of_size.block_bytes, figure_of_size.depth).second) {
        reader.fail("is there twice");
      }
      keep(reader);
      figures.push_back(figure_of_size);
    }
    return figures;
  }

  const std::string what_;
  std::map<Format, int64_t> heights_;  // The last batch size of each format
  std::set<std::tuple<Format, int64_t, int64_t, int64_t>> seen_;
  Status first_;
};

// Ordered, so that the file has its fields in the order that the header shows.
using Ordered = nlohmann::ordered_json;

Ordered figure_object(const Figure& figure) {
  if (!figure.source.empty()) return {{"value", figure.value}, {"source", figure.source}};
  return {{"value", figure.value},
          {"low", figure.low},
          {"high", figure.high},
          {"samples", figure.samples}};
}

Ordered compute_object(const HardwareProfile::Compute& compute) {
  Ordered matrix = Ordered::array();
  for (const MatrixFigure& one : compute.matrix) {
    matrix.push_back({{"format", format_name(one.format)},
                      {"rows", one.rows},
                      {"outputs", one.outputs},
                      {"inputs", one.inputs},
                      {"flops_per_second", figure_object(one.rate)}});
  }
  Ordered object = {{"kind", compute.kind},
                    {"memory_bytes", figure_object(compute.memory_bytes)},
                    {"memory_free_bytes", figure_object(compute.memory_free_bytes)},
                    {"memory_read_bytes_per_second", figure_object(compute.memory_read)},
                    {"matrix", matrix},
                    {"prompt_attention_flops_per_second", figure_object(compute.prompt_attention)},
                    {"decode_attention_bytes_per_second", figure_object(compute.decode_attention)}};
  const auto optional = [&](const char* name, const Figure& measured) {
    if (measured.value > 0) object[name] = figure_object(measured);
  };
  optional(kQ4Attention, compute.decode_attention_q4);
  optional(kQ8Attention, compute.decode_attention_q8);
  optional(kSharedAttention, compute.decode_attention_shared);
  optional(kSharedQ4Attention, compute.decode_attention_q4_shared);
  optional(kSharedQ8Attention, compute.decode_attention_q8_shared);
  if (compute.small_ops.value > 0) {
    object["small_ops_per_second"] = figure_object(compute.small_ops);
  }
  if (compute.in_int8) object["quantized_compute"] = "int8";
  if (!compute.peaks.empty()) {
    Ordered peaks = Ordered::array();
    for (const PeakFigure& peak : compute.peaks) {
      peaks.push_back({{"arithmetic", peak.arithmetic},
                       {"instruction", peak.instruction},
                       {"operations_per_second", figure_object(peak.rate)}});
    }
    object["peaks"] = peaks;
  }
  return object;
}

Ordered requests_list(const std::vector<DiskFigure>& figures) {
  Ordered list = Ordered::array();
  for (const DiskFigure& one : figures) {
    list.push_back({{"block_bytes", one.block_bytes},
                    {"depth", one.depth},
                    {"bytes_per_second", figure_object(one.rate)}});
  }
  return list;
}

Ordered copies_list(const std::vector<CopyFigure>& figures) {
  Ordered list = Ordered::array();
  for (const CopyFigure& one : figures) {
    list.push_back({{"bytes", one.bytes},
                    {"to_device_bytes_per_second", figure_object(one.to_device)},
                    {"to_host_bytes_per_second", figure_object(one.to_host)}});
  }
  return list;
}

}  // namespace

Result<HardwareProfile> parse_hardware_profile(std::string_view text, std::string_view what) {
  if (text.size() > kHardwareBytesMax) {
    return invalid_argument(std::string(what) + ": has " + std::to_string(text.size()) +
                            " bytes, a hardware profile at most " +
                            std::to_string(kHardwareBytesMax));
  }
  SPILLWAY_ASSIGN_OR_RETURN(const json root, parse_json_object(text, what));
  return Parser(what).parse(root);
}

std::string hardware_profile_json(const HardwareProfile& profile) {
  Ordered root = {{"version", kVersion}, {"name", profile.name}};
  if (!profile.measured_at.empty()) root["measured_at"] = profile.measured_at;
  root["compute"] = compute_object(profile.compute);
  root["host"] = {
      {"memory_bytes", figure_object(profile.host.memory_bytes)},
      {"memory_free_bytes", figure_object(profile.host.memory_free_bytes)},
      {"memory_read_bytes_per_second", figure_object(profile.host.memory_read)},
      {"decode_attention_bytes_per_second", figure_object(profile.host.decode_attention)}};
  if (profile.link) {
    root["link"] = {{"to_device_bytes_per_second", figure_object(profile.link->to_device)},
                    {"to_host_bytes_per_second", figure_object(profile.link->to_host)},
                    {"both_bytes_per_second", figure_object(profile.link->both)}};
    if (!profile.link->small.empty()) {
      root["link"]["small_copies"] = copies_list(profile.link->small);
    }
    if (profile.link->round_trips.value > 0) {
      root["link"]["round_trips_per_second"] = figure_object(profile.link->round_trips);
    }
  }
  root["disk"] = {{"free_bytes", figure_object(profile.disk.free_bytes)},
                  {"read", requests_list(profile.disk.read)},
                  {"write", requests_list(profile.disk.write)}};
  if (profile.disk.processor.value > 0) {
    root["disk"]["processor_bytes_per_second"] = figure_object(profile.disk.processor);
  }
  // Names come from the machine; a byte that is not UTF-8 must not end the program.
  return root.dump(2, ' ', false, Ordered::error_handler_t::replace) + "\n";
}

}  // namespace spillway
