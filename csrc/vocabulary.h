#pragma once

#include "llama.h"

#include <cstdint>
#include <string>
#include <vector>

namespace eagle3 {

// Do two numbers of tokens differ only by padding and a few tokens at the end? By at most 128, as in llama.cpp, or a
// hundredth; for small vocabularies a twentieth.
bool has_nearly(int64_t n_dft, int64_t n_tgt);

// How the tokens of a drafter's file differ from its target's. Files without texts differ in their numbers alone.
struct vocab_difference {
    std::string model_tgt; // kind of tokenizer (key tokenizer.ggml.model); empty: the file has none
    std::string model_dft;
    int32_t     n_tgt = 0; // tokens; 0: the file does not have the number
    int32_t     n_dft = 0;

    // tokens that have another text in each file, in ascending order; the texts of the first one
    std::vector<llama_token> others;
    std::string              text_tgt;
    std::string              text_dft;

    // number of tokens at the end that only one of the files has, without padding
    int32_t n_more = 0;

    // how BOS and EOS differ, as sentences
    std::vector<std::string> flags;
};

// n_vocab_*: tokens of files without texts; 0 if that is not known. Throws model_file_error.
//
// As in llama.cpp, the first five tokens (<unk>, <s>, </s>) may have any names.
vocab_difference compare_vocabularies(const std::string & path_tgt, const std::string & path_dft, int32_t n_vocab_tgt,
                                      int32_t n_vocab_dft);

} // namespace eagle3
