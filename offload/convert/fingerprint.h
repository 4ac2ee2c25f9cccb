// Which checkpoint a directory holds right now. Pure function of the file system, any thread.
#pragma once

#include <string>

#include "kernels/base/status.h"

namespace spillway {

// 32 hexadecimal digits over the names, sizes, modification times and contents of the directory's
// weight, index, configuration and tokenizer files. Of the contents the first and the last MiB of
// each file and samples of each tensor count (all of a small one): a few MiB for each file are
// read, however large it is, and two fine-tunings of one model differ though their files are alike
// in name, size and time. kNotFound when there is no such directory; kInvalidArgument for what is
// no regular file. Blocks.
Result<std::string> checkpoint_fingerprint(const std::string& directory);

// What a packed file says that it was made of (ModelFileTable::source): the model's name and that.
std::string source_of(const std::string& model_name, const std::string& fingerprint);

// The same over names, sizes and times alone, as packed files were named by once.
Result<std::string> checkpoint_fingerprint_of_stamps(const std::string& directory);

}  // namespace spillway
