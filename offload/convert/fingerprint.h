// Identifies the checkpoint that a directory, or a GGUF file, holds now. Pure function of the file
// system, any thread.
#pragma once

#include <string>

#include "kernels/base/status.h"

namespace spillway {

// 32 hexadecimal digits over the names, sizes, modification times and contents of the directory's
// weight, index, configuration and tokenizer files. Contents count by the first and the last MiB of
// each file and by samples of each tensor (all of a small one): a few MiB per file are read,
// however large it is, and two fine-tunings of one model differ though their files agree in name,
// size and time. Of a path that ends in .gguf the files are the model's (gguf_model.h), and all of
// their headers count. kNotFound when there is no such path; kInvalidArgument for an entry that is
// not a regular file. Blocks.
Result<std::string> checkpoint_fingerprint(const std::string& path);

// Likewise without the times: copies of a checkpoint, on whatever machine, have the same.
Result<std::string> checkpoint_contents(const std::string& path);

// The source that a packed file names (ModelFileTable::source): model name and fingerprint.
std::string source_of(const std::string& model_name, const std::string& fingerprint);

// A fingerprint of names, sizes and times alone, which older packed files were named by.
Result<std::string> checkpoint_fingerprint_of_stamps(const std::string& path);

}  // namespace spillway
