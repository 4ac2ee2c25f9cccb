#include "policy/flexgen/flexgen_hardware.h"

#include <nlohmann/json.hpp>

#include "kernels/base/json_reader.h"
#include "kernels/base/strict_json.h"

namespace spillway {

namespace {

constexpr int64_t kVersion = 1;
constexpr size_t kTextBytesMax = 1000;

// Limits in the file's units: far outside of any machine, and no sum or product of them overflows.
constexpr double kLeast = 1e-9, kMost = 1e9;

constexpr double kGiB = 1 << 30;
constexpr double kTera = 1e12;

struct Field {
  const char* key;
  double FlexgenHardware::*member;
  double unit;
};

constexpr Field kFields[] = {
    {"device_memory_gib", &FlexgenHardware::device_memory, kGiB},
    {"host_memory_gib", &FlexgenHardware::host_memory, kGiB},
    {"disk_memory_gib", &FlexgenHardware::disk_memory, kGiB},
    {"host_to_device_gib_per_second", &FlexgenHardware::host_to_device, kGiB},
    {"device_to_host_cache_gib_per_second", &FlexgenHardware::device_to_host_cache, kGiB},
    {"device_to_host_hidden_gib_per_second", &FlexgenHardware::device_to_host_hidden, kGiB},
    {"disk_to_host_gib_per_second", &FlexgenHardware::disk_to_host, kGiB},
    {"host_to_disk_prefill_cache_gib_per_second", &FlexgenHardware::host_to_disk_prefill_cache,
     kGiB},
    {"host_to_disk_prefill_hidden_gib_per_second", &FlexgenHardware::host_to_disk_prefill_hidden,
     kGiB},
    {"host_to_disk_decode_gib_per_second", &FlexgenHardware::host_to_disk_decode, kGiB},
    {"prefill_matrix_tflop_per_second", &FlexgenHardware::prefill_matrix, kTera},
    {"decode_matrix_tflop_per_second", &FlexgenHardware::decode_matrix, kTera},
    {"prefill_attention_tflop_per_second", &FlexgenHardware::prefill_attention, kTera},
    {"decode_attention_tflop_per_second", &FlexgenHardware::decode_attention, kTera},
    {"host_attention_tflop_per_second", &FlexgenHardware::host_attention, kTera},
    {"host_attention_loss_per_halved_micro_batch", &FlexgenHardware::loss_per_halved_micro_batch,
     1},
    {"host_attention_loss_per_halved_hidden", &FlexgenHardware::loss_per_halved_hidden, 1},
    {"host_attention_gain_per_both_halved", &FlexgenHardware::gain_per_both_halved, 1},
};

}  // namespace

Result<FlexgenHardware> parse_flexgen_hardware(std::string_view text, std::string_view what) {
  SPILLWAY_ASSIGN_OR_RETURN(const nlohmann::json root, parse_json_object(text, what));
  JsonReader reader(root, std::string(what));
  reader.version(kVersion, "FlexGen's hardware constants", "configs/hardware has some");
  FlexgenHardware hardware;
  hardware.name = reader.string("name", kTextBytesMax);
  hardware.source = reader.string("source", kTextBytesMax);
  if (hardware.source.empty()) reader.fail("source is empty; say where the numbers are from");
  for (const Field& field : kFields) {
    hardware.*field.member = reader.number(field.key, kLeast, kMost) * field.unit;
  }
  reader.refuse_unknown();
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  return hardware;
}

}  // namespace spillway
