#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>

namespace eagle3 {

// Other values for keys of a header (llama.cpp's kv_overrides).
using kv_overrides = std::map<std::string, std::variant<bool, int64_t, double, std::string>>;

// Checks the numbers of a model's header that llama.cpp's loader asserts or divides by, its vocabulary, and the headers
// of the other files of a split model. Throws model_file_error with the reason. What is not checked here fails in
// llama.cpp (load_guard.h) or in a child process (llama_cpp_eagle3/files/trial.py). Returns the header's size in bytes.
size_t check_header(const std::string & path, const kv_overrides & overrides = {});

} // namespace eagle3
