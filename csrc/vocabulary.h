#pragma once

#include "llama.h"

#include <cstdint>
#include <string>
#include <vector>

namespace eagle3 {

// Whether two numbers of tokens differ by padding and a few tokens at the end alone: by 128, as in llama.cpp, or by a
// hundredth; of small vocabularies by a twentieth
bool has_nearly(int64_t n_dft, int64_t n_tgt);

// How the tokens of a drafter's file differ from its target's. Files without texts differ in their numbers alone.
struct vocab_difference {
    std::string model_tgt; // kind of tokenizer (key tokenizer.ggml.model); empty: the file has none
    std::string model_dft;
    int32_t     n_tgt = 0; // tokens; 0: the file does not have the number
    int32_t     n_dft = 0;

    // tokens that both have, with other texts, in ascending order; the texts of the first one
    std::vector<llama_token> others;
    std::string              text_tgt;
    std::string              text_dft;

    // tokens at the end that only one of both has, and that are no padding
    int32_t n_more = 0;

    // BOS and EOS: how they differ, as sentences
    std::vector<std::string> flags;
};

// n_vocab_*: tokens of files without texts; 0 if that is not known. Throws model_file_error.
//
// As in llama.cpp, the first five tokens (<unk>, <s>, </s>) may be named as one likes.
vocab_difference compare_vocabularies(const std::string & path_tgt, const std::string & path_dft, int32_t n_vocab_tgt,
                                      int32_t n_vocab_dft);

} // namespace eagle3
