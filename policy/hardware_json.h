// Hardware profiles as JSON, as `spillway profile` writes and configs/hardware/ holds. Version 1:
//
//   {"version": 1, "name": "...", "measured_at": "2026-01-31T12:00:00Z",
//    "compute": {"kind": "cpu", "memory_bytes": FIGURE, "memory_free_bytes": FIGURE,
//                "memory_read_bytes_per_second": FIGURE,
//                "matrix": [{"format": "bf16", "rows": 16, "outputs": 4096, "inputs": 4096,
//                            "flops_per_second": FIGURE}, ...],
//                "prompt_attention_flops_per_second": FIGURE,
//                "decode_attention_bytes_per_second": FIGURE,
//                "decode_attention_q4_bytes_per_second",
//                "decode_attention_q8_bytes_per_second",
//                "decode_attention_shared_bytes_per_second",
//                "decode_attention_q4_shared_bytes_per_second",
//                "decode_attention_q8_shared_bytes_per_second": FIGURE each (may be left out),
//                "peaks": [{"arithmetic": "bf16", "instruction": "VDPBF16PS, 512 bits",
//                           "operations_per_second": FIGURE}, ...] (may be left out)},
//    "host": {"memory_bytes", "memory_free_bytes", "memory_read_bytes_per_second",
//             "decode_attention_bytes_per_second": FIGURE each},
//    "link": {"to_device_bytes_per_second", "to_host_bytes_per_second", "both_bytes_per_second"},
//    "disk": {"free_bytes": FIGURE,
//             "read": [{"block_bytes": 2097152, "depth": 8, "bytes_per_second": FIGURE}, ...],
//             "write": [...]}}
//
// A FIGURE is {"value", "low", "high", "samples"} as measured, or {"value", "source"} as looked up.
// "measured_at" may be missing; "link" is there exactly when the kind is "cuda".
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "kernels/base/status.h"
#include "policy/hardware_profile.h"

namespace spillway {

constexpr size_t kHardwareBytesMax = size_t{1} << 20;  // Limit on a profile's text

// kInvalidArgument, with `what` (a file's name) and the path of the field, for anything that is
// missing, unknown, out of order (batch sizes of a format ascend) or not a number from 1 to 1e18;
// for another version, with that version.
Result<HardwareProfile> parse_hardware_profile(std::string_view text, std::string_view what);

// The profile as text, ending in a newline; parsing it gives the same profile. A figure that is not
// finite makes a text that does not parse.
std::string hardware_profile_json(const HardwareProfile& profile);

}  // namespace spillway
