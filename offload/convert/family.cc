#include "offload/convert/family.h"

namespace spillway {

const Family* family_of(std::string_view model_type) {
  for (const Family* family : {&kFamilyOpt}) {
    if (family->model_type == model_type) return family;
  }
  return nullptr;
}

}  // namespace spillway
