// The OPT family: OPT, OPT-IML, Galactica.
#pragma once

#include "offload/convert/family.h"

namespace spillway {

extern const Family kFamilyOpt;

}  // namespace spillway
