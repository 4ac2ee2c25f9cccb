// A hardware profile for people: every figure with its spread, or its source.
#pragma once

#include <string>

#include "policy/hardware_profile.h"

namespace spillway {

std::string profile_table(const HardwareProfile& profile);

}  // namespace spillway
