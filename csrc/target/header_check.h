#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>

namespace eagle3 {

// keys of a header that are to have other values (kv_overrides of llama.cpp)
using kv_overrides = std::map<std::string, std::variant<bool, int64_t, double, std::string>>;

// Checks the numbers in a model's header against each other as llama.cpp's loader asserts them, and by what it divides;
// the vocabulary; and the headers of the other files of a split model. A model_file_error has the reason.
// What is not checked here fails in llama.cpp (load_guard.h), or in a process that tries it
// (llama_cpp_eagle3/files/trial.py). Returns how many bytes the header takes
size_t check_header(const std::string & path, const kv_overrides & overrides = {});

} // namespace eagle3
