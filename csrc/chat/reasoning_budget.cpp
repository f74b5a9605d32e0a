#include "reasoning_budget.h"

#include "unicode.h" // of llama.cpp

#include <algorithm>

namespace eagle3::chat {

namespace {

// The text of a tag, without the space that some tokenizers put before it and the newlines that templates put around
// it, unless it consists of these.
std::string text_of(const llama_vocab * vocab, const llama_tokens & tag) {
    std::string text;
    for (const llama_token token : tag) {
        text += common_token_to_piece(vocab, token, true);
    }
    const size_t begin = text.find_first_not_of(" \n");
    return begin == std::string::npos ? text : text.substr(begin, text.find_last_not_of(" \n") + 1 - begin);
}

constexpr size_t n_bytes_of_character = 4;

} // namespace

reasoning_budget::reasoning_budget(const llama_vocab * vocab, const llama_tokens & start,
                                   const std::vector<llama_tokens> & ends, llama_tokens forced, int32_t n_max) {
    tags made{ vocab, text_of(vocab, start), {}, std::move(forced), n_max, n_bytes_of_character };
    made.n_bytes_kept = std::max(made.n_bytes_kept, made.start.size());
    for (const llama_tokens & end : ends) {
        made.ends.push_back(text_of(vocab, end));
        made.n_bytes_kept = std::max(made.n_bytes_kept, made.ends.back().size());
    }
    tags_ = std::make_shared<const tags>(std::move(made));
}

// Reads a token: finds tags, and counts it.
void reasoning_budget::read(llama_token token) {
    const bool        was_counting = phase_ == phase::counting;
    const std::string piece        = common_token_to_piece(tags_->vocab, token, true);
    text_ += piece;
    tokens_.emplace_back(token, piece.size());
    if (!is_forcing()) {
        end_.clear();
    } else if (!end_.empty()) {
        end_.push_back(token); // forced tokens after a tag are part of the end
    }
    while (take_tag()) {
    }
    if (was_counting && phase_ == phase::counting) {
        --n_left_;
    }
    text_.erase(0, text_.size() - std::min(text_.size(), tags_->n_bytes_kept));
    if (tokens_.size() > tags_->n_bytes_kept) { // nearly every token has at least one byte
        tokens_.erase(tokens_.begin());
    }
}

// Removes the first tag that changes the phase, and the text before it.
bool reasoning_budget::take_tag() {
    size_t     begin = std::string::npos;
    size_t     end   = begin;
    const auto find  = [&](const std::string & tag) {
        const size_t found = tag.empty() ? std::string::npos : text_.find(tag);
        if (found < begin) {
            begin = found;
            end   = found + tag.size();
        }
    };
    if (is_open()) {
        std::for_each(tags_->ends.begin(), tags_->ends.end(), find);
    } else {
        find(tags_->start);
    }
    if (begin == std::string::npos) {
        return false;
    }
    if (is_open()) {
        keep_end_at(begin);
        if (!is_forcing()) { // if tokens are forced, the last one ends the reasoning
            phase_ = phase::outside;
        }
    } else {
        end_.clear();
        n_left_ = tags_->n_max;
        phase_  = phase::counting;
    }
    text_.erase(0, end);
    return true;
}

void reasoning_budget::keep_end_at(size_t begin) {
    end_.clear();
    size_t n = text_.size() - begin;
    for (auto it = tokens_.rbegin(); it != tokens_.rend() && n > 0; ++it) {
        end_.insert(end_.begin(), it->first);
        n -= std::min(n, it->second);
    }
}

void reasoning_budget::force_if_spent() {
    if (is_open() && !is_forcing() && n_left_ <= 0) {
        phase_    = common_utf8_is_complete(text_) ? phase::forcing : phase::waiting_for_character;
        n_forced_ = 0;
    }
}

void reasoning_budget::accept(llama_token token) {
    const bool was_forcing = is_forcing();
    read(token);
    if (was_forcing && ++n_forced_ >= tags_->forced.size()) {
        phase_ = phase::outside;
    }
    force_if_spent();
}

void reasoning_budget::accept_prompt(const llama_tokens & tokens) {
    for (const llama_token token : tokens) {
        read(token);
    }
    end_.clear();
    force_if_spent();
}

llama_token reasoning_budget::forced() const {
    return is_forcing() && n_forced_ < tags_->forced.size() ? tags_->forced[n_forced_] : LLAMA_TOKEN_NULL;
}

void reasoning_budget::reset() {
    phase_  = phase::outside;
    n_left_ = 0;
    text_.clear();
    tokens_.clear();
    end_.clear();
}

} // namespace eagle3::chat
