// The types of llama.cpp's llama.h that csrc/policy and csrc/drafters/ngram name, so that the replay needs no llama.cpp.

#pragma once

#include <cstdint>

using llama_token  = int32_t;
using llama_seq_id = int32_t;
