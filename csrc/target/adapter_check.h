#pragma once

#include <string>
#include <vector>

namespace eagle3 {

// Checks a LoRA adapter's file for a model: what llama.cpp does not check itself, such as the types
// and numbers of its matrices, would end the process while it computes. Throws model_file_error with the reason.
// Returns the names of the tensors that llama.cpp leaves out.
std::vector<std::string> check_adapter(const std::string & path, const std::string & model_path);

} // namespace eagle3
