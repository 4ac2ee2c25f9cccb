// Machine rates for the released FlexGen's cost model (policy/flexgen/flexgen_cost.h): one rate per
// link and kind of work. configs/hardware/flexgen-t4.json has the ones it was released with. Plain
// values, any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "kernels/base/status.h"

namespace spillway {

struct FlexgenHardware {
  std::string name, source;

  double device_memory = 0, host_memory = 0, disk_memory = 0;  // Bytes

  // Bytes/s. "Hidden": activations between layers.
  double host_to_device = 0;
  double device_to_host_cache = 0, device_to_host_hidden = 0;
  double disk_to_host = 0;
  double host_to_disk_prefill_cache = 0, host_to_disk_prefill_hidden = 0;
  double host_to_disk_decode = 0;

  // FLOP/s of matrix products with weights and of attention on the device, and of decode's
  // attention on the host with micro-batches of at least 64 and a hidden size of at least 4096.
  double prefill_matrix = 0, decode_matrix = 0;
  double prefill_attention = 0, decode_attention = 0;
  double host_attention = 0;

  // The share of host_attention that is lost with each halving of the micro-batch below 64, with
  // each halving of the hidden size below 4096, and the gain for the product of both numbers of
  // halvings.
  double loss_per_halved_micro_batch = 0, loss_per_halved_hidden = 0, gain_per_both_halved = 0;
};

constexpr size_t kFlexgenHardwareBytesMax = size_t{1} << 16;  // Limit on the file's text

// Version 1: one flat object of "version", "name", "source" and a positive number for each of the
// fields above, with its unit in its name (GiB are 2^30 bytes, TFLOP 1e12). kInvalidArgument, with
// `what` (a file's name) and the field, for anything missing, unknown or not positive; for another
// version, with that version.
Result<FlexgenHardware> parse_flexgen_hardware(std::string_view text, std::string_view what);

}  // namespace spillway
