#include "grammar/pieces.h"

#include "grammar/llama_grammar.h"
#include "llama-vocab.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

namespace eagle3 {

namespace {

bool wants_token(const llama_grammar_stack & stack) {
    return !stack.empty() &&
           (stack.back()->type == LLAMA_GRETYPE_TOKEN || stack.back()->type == LLAMA_GRETYPE_TOKEN_NOT);
}

// The candidates that no stack accepts.
llama_grammar_candidates refused(const llama_grammar & grammar, llama_grammar_candidates candidates) {
    for (const llama_grammar_stack & stack : grammar.stacks) {
        candidates = llama_grammar_reject_candidates_for_stack(grammar.rules, stack, candidates);
    }
    return candidates;
}

} // namespace

void grammar_pieces::decode() {
    std::unordered_map<uint32_t, uint32_t> firsts;
    pieces_.resize(vocab_.n_tokens());
    for (size_t i = 0; i < pieces_.size(); ++i) {
        const auto          token = static_cast<llama_token>(i);
        const std::string & text  = vocab_.token_to_piece(token);
        piece &             made  = pieces_[i];
        if (vocab_.is_eog(token)) {
            made.what = kind::end_of_generation;
        } else if (!text.empty() && text[0] != 0) {
            const auto [code_points, end] = decode_piece(text);

            made.what   = code_points[0] == 0 ? kind::fragment : kind::character;
            made.offset = code_points_.size();
            made.end    = end;
            code_points_.insert(code_points_.end(), code_points.begin(), code_points.end());
            if (made.what == kind::character) {
                const auto [found, is_new] =
                    firsts.emplace(code_points[0], static_cast<uint32_t>(beginnings_.size() / 2));
                if (is_new) {
                    beginnings_.insert(beginnings_.end(), { code_points[0], 0 });
                }
                made.first = found->second;
            }
        }
    }
}

std::vector<bool> grammar_pieces::allowed_beginnings(const llama_grammar & grammar) const {
    std::vector<bool> result(beginnings_.size() / 2, true);
    if (std::any_of(grammar.stacks.begin(), grammar.stacks.end(), wants_token)) {
        return result; // a rule that names tokens does not depend on characters
    }
    llama_grammar_candidates candidates;
    candidates.reserve(result.size());
    for (size_t i = 0; i < result.size(); ++i) {
        candidates.push_back({ i, beginnings_.data() + 2 * i, {}, LLAMA_TOKEN_NULL });
    }
    for (const llama_grammar_candidate & candidate : refused(grammar, std::move(candidates))) {
        result[candidate.index] = false;
    }
    return result;
}

void grammar_pieces::apply(const llama_grammar & grammar, llama_token_data_array * cur_p) {
    if (pieces_.empty()) {
        decode();
    }
    const std::vector<bool> begins  = allowed_beginnings(grammar);
    const bool              may_end = std::any_of(grammar.stacks.begin(), grammar.stacks.end(),
                                                  [](const llama_grammar_stack & stack) { return stack.empty(); });

    llama_grammar_candidates candidates;
    for (size_t i = 0; i < cur_p->size; ++i) {
        llama_token_data & token = cur_p->data[i];
        const piece &      spelt = pieces_.at(token.id);
        if (spelt.what == kind::fragment || (spelt.what == kind::character && begins[spelt.first])) {
            candidates.push_back({ i, code_points_.data() + spelt.offset, spelt.end, token.id });
        } else if (spelt.what != kind::end_of_generation || !may_end) {
            token.logit = -INFINITY;
        }
    }
    for (const llama_grammar_candidate & candidate : refused(grammar, std::move(candidates))) {
        cur_p->data[candidate.index].logit = -INFINITY;
    }
}

} // namespace eagle3
