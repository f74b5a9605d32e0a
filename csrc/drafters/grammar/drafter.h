#pragma once

#include "drafter/draft_tree.h"
#include "grammar/forced.h"
#include "grammar/white_space.h"

#include "llama.h"

#include <string>
#include <vector>

namespace eagle3 {

// Drafts what a grammar forces, as the tokenizer would spell it. Costs no model's pass.
class grammar_drafter {
  public:
    // grammar: see find_forced. Both must outlive this.
    grammar_drafter(const llama_vocab * vocab, const llama_sampler * grammar) : vocab_(vocab), grammar_(grammar) {}

    // Reads the text's next tokens, which the grammar has accepted.
    void read(const std::vector<llama_token> & tokens);

    // Forgets the text.
    void reset();

    // What is forced next.
    forced_text forced() const { return find_forced(grammar_, habit_); }

    // The same as tokens, at most n_max, each with the probability that it comes after those before.
    std::vector<draft_candidate> propose(size_t n_max);

  private:
    std::vector<draft_candidate> spell(const forced_text & found) const;

    const llama_vocab *      vocab_;
    const llama_sampler *    grammar_;
    white_space              habit_;
    std::vector<std::string> last_;               // texts of the last tokens
    bool                     has_failed_ = false; // the grammar is too ambiguous
};

} // namespace eagle3
