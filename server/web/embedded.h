// The files of this folder, as the build put them into the program (CMakeLists.txt).
#pragma once

#include <string_view>

namespace spillway {

extern const std::string_view kIndexHtml;
extern const std::string_view kDashboardCss;
extern const std::string_view kDashboardJs;

}  // namespace spillway
