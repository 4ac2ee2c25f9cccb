// Opens models for commands that take an OpenModel (served_model.h): the runtime behind its plain
// view.
#pragma once

#include "server/cli/common/served_model.h"

namespace spillway {

// Opens MODEL as the flags say and keeps it alive in ServedModel::owner. What goes on is said on
// stderr, a line each. kTokenizer reads only the packed file's table.
OpenModel model_opener();

}  // namespace spillway
