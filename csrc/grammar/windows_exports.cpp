// The functions of libllama that llama.cpp's grammar code calls and llama.h does not declare: llama.dll exports only
// those of llama.h.

#include "llama-impl.h"
#include "llama-vocab.h"
#include "target/tokenizer.h"

#include <cstdarg>
#include <cstdio>

uint32_t llama_vocab::n_tokens() const {
    return static_cast<uint32_t>(llama_vocab_n_tokens(this));
}

bool llama_vocab::is_eog(llama_token id) const {
    return llama_vocab_is_eog(this, id);
}

int32_t llama_vocab::tokenize(const char * text, int32_t text_len, llama_token * tokens, int32_t n_tokens_max,
                              bool add_special, bool parse_special) const {
    return llama_tokenize(this, text, text_len, tokens, n_tokens_max, add_special, parse_special);
}

// Valid until the thread's next call.
const std::string & llama_vocab::token_to_piece(llama_token token) const {
    static thread_local std::string piece;
    piece = eagle3::token_to_piece(this, token, true);
    return piece;
}

void llama_log_internal(ggml_log_level level, const char * format, ...) {
    char    text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    ggml_log_callback log  = nullptr;
    void *            data = nullptr;
    llama_log_get(&log, &data);
    log(level, text, data);
}
