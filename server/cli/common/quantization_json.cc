#include "server/cli/common/quantization_json.h"

#include <nlohmann/json.hpp>

namespace spillway {

nlohmann::json json_of_quantization(const Q4Error& error) {
  return {{"format", dtype_name(DType::kQ4)},
          {"group", kQ4Group},
          {"relative_rms", error.relative_rms()},
          {"error_max", error.error_max},
          {"saturated", error.saturated}};
}

}  // namespace spillway
