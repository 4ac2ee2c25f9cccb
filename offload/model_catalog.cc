#include "offload/model_catalog.h"

#include "offload/config_files.h"
#include "offload/convert/hf_config.h"

namespace spillway {

Result<ModelShape> find_model_shape(const std::string& name) {
  SPILLWAY_ASSIGN_OR_RETURN(const ConfigFile file,
                            read_config_file("models", name, "model shape", kConfigBytesMax));
  Result<HfConfig> config = parse_hf_config(file.text, "", name);
  if (!config.ok()) return config.status().at(file.path);
  return config.value().shape;
}

}  // namespace spillway
