#pragma once

#include "common.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace eagle3::chat {

// Where a text reasons, and how long it may. Tags are found in the text, as the parser of the answer finds them, and
// not as tokens: a tag of several tokens may be written with others, of which the first and last hold what stands
// around it
// ("<th", "ink", ">\n").
class reasoning_budget {
  public:
    // the tags and `forced` are tokens. n_max: tokens; what is forced when they are spent is not one of them
    reasoning_budget(const llama_vocab * vocab, const llama_tokens & start, const std::vector<llama_tokens> & ends,
                     llama_tokens forced, int32_t n_max);

    bool is_open() const { return phase_ != phase::outside; }

    void accept(llama_token token);

    // the end of a prompt, which no budget changes: what it has spent is taken from the budget
    void accept_prompt(const llama_tokens & tokens);

    // the tokens in which the end of the reasoning stands that the last one ended; empty if it ended none
    const llama_tokens & end() const { return end_; }

    // the only token that may come; LLAMA_TOKEN_NULL: any
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
