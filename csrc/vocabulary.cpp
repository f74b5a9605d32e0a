#include "vocabulary.h"

#include "error.h"
#include "gguf_file.h"

#include <algorithm>
#include <string_view>

namespace eagle3 {

bool has_nearly(int64_t n_dft, int64_t n_tgt) {
    constexpr int64_t n_more = 128;
    return std::abs(n_dft - n_tgt) <= std::max(n_tgt / 100, std::min(n_more, n_tgt / 20));
}

// Converters give such names to the rows of a matrix for which there are no tokens.
static bool is_padding(std::string_view text) {
    return text.substr(0, 4) == "[PAD" || text.substr(0, 5) == "<pad_";
}

static std::vector<std::string> compare_flags(const gguf_file & tgt, const gguf_file & dft) {
    std::vector<std::string> found;
    for (const char * name : { "bos", "eos" }) {
        const std::string add     = format("tokenizer.ggml.add_%s_token", name);
        const std::string id      = format("tokenizer.ggml.%s_token_id", name);
        const bool        add_tgt = tgt.get_bool(add).value_or(false);
        if (add_tgt != dft.get_bool(add).value_or(add_tgt)) {
            found.push_back(format("%s is %s of the target and %s of the draft", add.c_str(),
                                   add_tgt ? "true" : "false", add_tgt ? "false" : "true"));
        }
        const auto id_tgt = tgt.get_int(id);
        const auto id_dft = dft.get_int(id);
        if (id_tgt && id_dft && *id_tgt != *id_dft) {
            found.push_back(format("%s is %lld of the target and %lld of the draft", id.c_str(),
                                   static_cast<long long>(*id_tgt), static_cast<long long>(*id_dft)));
        }
    }
    return found;
}

vocab_difference compare_vocabularies(const std::string & path_tgt, const std::string & path_dft, int32_t n_vocab_tgt,
                                      int32_t n_vocab_dft) {
    constexpr size_t n_named = 5;
    const gguf_file  tgt(path_tgt);
    const gguf_file  dft(path_dft);
    const auto       texts_tgt = tgt.get_str_array("tokenizer.ggml.tokens");
    const auto       texts_dft = dft.get_str_array("tokenizer.ggml.tokens");

    vocab_difference res;
    res.model_tgt = tgt.get_str("tokenizer.ggml.model").value_or("");
    res.model_dft = dft.get_str("tokenizer.ggml.model").value_or("");
    res.n_tgt     = texts_tgt.empty() ? n_vocab_tgt : static_cast<int32_t>(texts_tgt.size());
    res.n_dft     = texts_dft.empty() ? n_vocab_dft : static_cast<int32_t>(texts_dft.size());

    const size_t n_both = std::min(texts_tgt.size(), texts_dft.size());
    for (size_t i = n_named; i < n_both; ++i) {
        if (texts_tgt[i] == texts_dft[i]) {
            continue;
        }
        if (res.others.empty()) {
            res.text_tgt = texts_tgt[i];
            res.text_dft = texts_dft[i];
        }
        res.others.push_back(static_cast<llama_token>(i));
    }
    if (n_both > 0) {
        const auto & longer = texts_tgt.size() > n_both ? texts_tgt : texts_dft;
        res.n_more =
            static_cast<int32_t>(std::count_if(longer.begin() + static_cast<std::ptrdiff_t>(n_both), longer.end(),
                                               [](std::string_view text) { return !is_padding(text); }));
        res.flags = compare_flags(tgt, dft);
    } else if (res.n_tgt > 0 && res.n_dft > 0) {
        res.n_more = std::abs(res.n_tgt - res.n_dft);
    }
    return res;
}

} // namespace eagle3
