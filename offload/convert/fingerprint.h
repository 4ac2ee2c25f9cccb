// Which checkpoint a directory holds right now. Pure function of the file system, any thread.
#pragma once

#include <string>

#include "kernels/base/status.h"

namespace spillway {

// 32 hexadecimal digits over the names, sizes and modification times of the directory's weight,
// index, configuration and tokenizer files. Another file, or one written to, gives another
// fingerprint. kNotFound when there is no such directory. Blocks.
Result<std::string> checkpoint_fingerprint(const std::string& directory);

}  // namespace spillway
