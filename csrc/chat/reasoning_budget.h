#pragma once

#include "common.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace eagle3::chat {

// Finds where a text reasons, and limits how long it may. Tags are searched for in the text, as the parser of the
// answer does, and not as tokens: a model may write a tag with other tokens, the first and last of which may have more
// text
// ("<th", "ink", ">\n").
class reasoning_budget {
  public:
    // start, ends: the tags, as tokens. n_max: tokens of reasoning, after which `forced` is forced, which does not
    // count.
    reasoning_budget(const llama_vocab * vocab, const llama_tokens & start, const std::vector<llama_tokens> & ends,
                     llama_tokens forced, int32_t n_max);

    bool is_open() const { return phase_ != phase::outside; }

    void accept(llama_token token);

    // Reads the end of a prompt, in which nothing is forced. Its reasoning counts.
    void accept_prompt(const llama_tokens & tokens);

    // If the last token ended the reasoning, the tokens that have the end tag; else empty.
    const llama_tokens & end() const { return end_; }

    // The only token that may come next; LLAMA_TOKEN_NULL: any.
    llama_token forced() const;

    void reset();

  private:
    enum class phase { outside, counting, waiting_for_character, forcing };

    struct tags {
        const llama_vocab *      vocab;
        std::string              start;
        std::vector<std::string> ends;
        llama_tokens             forced;
        int32_t                  n_max;
        size_t                   n_bytes_kept; // of the text, among which a tag may have begun
    };

    bool is_forcing() const { return phase_ == phase::forcing; }

    void read(llama_token token);
    bool take_tag();
    void keep_end_at(size_t begin);
    void force_if_spent();

    std::shared_ptr<const tags>                 tags_;
    phase                                       phase_    = phase::outside;
    int32_t                                     n_left_   = 0;
    size_t                                      n_forced_ = 0;
    std::string                                 text_;   // its end, without what tags were found in
    std::vector<std::pair<llama_token, size_t>> tokens_; // the last ones, with the bytes of each
    llama_tokens                                end_;
};

} // namespace eagle3::chat
