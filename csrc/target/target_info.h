#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace eagle3 {

// The facts of a target's GGUF header
struct target_info {
    std::string path;
    std::string arch;
    std::string name;

    int32_t n_layer     = 0; // without the layers for multi-token prediction, with each turn of a loop
    int32_t n_embd      = 0;
    int32_t n_vocab     = 0;
    int32_t n_ctx_train = 0;
    int64_t file_size   = 0;

    bool    has_trunk     = true; // false: a file of layers for multi-token prediction alone
    int32_t n_layer_nextn = 0;    // layers for multi-token prediction that are in the file
    int32_t n_layer_gone  = 0;    // those that the header announces, and of which the file has no tensor

    // keys with the values that they would have without the announced layers, for llama.cpp; none: it needs none, or
    // cannot be told
    std::map<std::string, int64_t> keys_without_block;
    int32_t nextn        = -1;    // the rows that they read are those at boundary n_layer + nextn; -1 = unknown
    int32_t n_embd_nextn = 0;     // values of such a row
    bool    runs_block   = false; // whether llama.cpp has a graph of them

    // where its hidden states can be read: 0 .. n_layer, and n_layer + 1 after the final norm
    std::vector<int32_t> boundaries;
    // why no head can stand behind it, empty if one can
    std::string          why_no_target;
    std::string          why_no_text; // why nothing can draft for it, nor it for others
};

// throws model_file_error if the file is missing, truncated, not GGUF, or lacks one of these
target_info read_target_info(const std::string & path);

// How the tokenizers of two files differ. Files without one, or with one of another size, differ in nothing here
struct token_difference {
    int32_t     n_different = 0;
    int32_t     first       = -1; // the first different token, with its texts
    std::string text_a;
    std::string text_b;
};

token_difference compare_tokens(const std::string & path_a, const std::string & path_b);

// Why the tokens of one model are not another one's: the first difference in tokenizer, number, texts or special
// tokens, as a sentence; empty if they are. As in llama.cpp, the first five tokens may have other texts, and one
// vocabulary may have up to 128 tokens more, which are padding.
std::string find_vocab_difference(const std::string & path_tgt, const std::string & path_dft);

} // namespace eagle3
