#include "server/cli/common/report_json.h"

#include <nlohmann/json.hpp>

namespace spillway {

nlohmann::json json_of_quantization(Format format, const QuantError& error) {
  return {{"format", format_name(format)},
          {"group", format_traits(format).group},
          {"relative_rms", error.relative_rms()},
          {"error_max", error.error_max},
          {"saturated", error.saturated}};
}

}  // namespace spillway
