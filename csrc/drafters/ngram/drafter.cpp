#include "drafters/ngram/drafter.h"

#include "error.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

namespace eagle3 {

namespace {

constexpr float novelty = 1.3f; // a token that no occurrence has gets this times the longest agreement as votes

} // namespace

ngram_drafter::ngram_drafter(int32_t n_seq_max, std::shared_ptr<ngram_store> store,
                             std::shared_ptr<const ngram_store> corpus) :
    store_(std::move(store)), corpus_(std::move(corpus)) {
    if (n_seq_max < 1) {
        throw std::invalid_argument(format("text drafter: expected n_seq_max >= 1, found %d", n_seq_max));
    }
    sequences_.resize(static_cast<size_t>(n_seq_max));
}

void ngram_drafter::check(int32_t seq_id) const {
    if (seq_id < 0 || static_cast<size_t>(seq_id) >= sequences_.size()) {
        throw std::invalid_argument(
            format("text drafter: expected a sequence in 0..%zu, found %d", sequences_.size() - 1, seq_id));
    }
}

const ngram_index & ngram_drafter::text(int32_t seq_id) const {
    check(seq_id);
    return sequences_[static_cast<size_t>(seq_id)].text;
}

size_t ngram_drafter::n_known(int32_t seq_id, size_t n_prompt) const {
    const size_t     n = text(seq_id).tokens().size();
    const sequence & s = sequences_[static_cast<size_t>(seq_id)];
    return n_prompt == s.n_prompt && !s.is_new && n > n_compared ? n - n_compared : 0;
}

void ngram_drafter::begin(int32_t seq_id) {
    check(seq_id);
    sequences_[static_cast<size_t>(seq_id)].is_new = true;
}

void ngram_drafter::set_rules(std::shared_ptr<grammar_lookahead> rules, int32_t seq_id) {
    check(seq_id);
    sequences_[static_cast<size_t>(seq_id)].rules = std::move(rules);
}

void ngram_drafter::set_forced(std::vector<draft_candidate> tokens, int32_t seq_id) {
    check(seq_id);
    sequences_[static_cast<size_t>(seq_id)].forced = std::move(tokens);
}

const std::vector<draft_candidate> & ngram_drafter::forced(int32_t seq_id) const {
    check(seq_id);
    return sequences_[static_cast<size_t>(seq_id)].forced;
}

bool ngram_drafter::update(int32_t seq_id, size_t n_before, const llama_token * tokens, size_t n, size_t n_prompt) {
    check(seq_id);
    sequence &   s    = sequences_[static_cast<size_t>(seq_id)];
    const auto & held = s.text.tokens();
    if (n_before > held.size()) {
        throw std::invalid_argument(format("text drafter: expected the text from token %zu on at the latest, found %zu",
                                           held.size(), n_before));
    }
    const auto first  = held.begin() + static_cast<std::ptrdiff_t>(n_before);
    const auto n_most = static_cast<std::ptrdiff_t>(std::min(n, held.size() - n_before));
    const auto n_same = static_cast<size_t>(std::mismatch(first, first + n_most, tokens).first - first);
    if (n_before + n_same < held.size() || n_prompt != s.n_prompt || s.is_new) { // another text
        if (n_before > 0) {
            return false;
        }
        store(s);
        s.text.truncate(n_same);
        s.n_prompt = s.n_stored = n_prompt;
        s.is_new                = false;
    }
    for (size_t i = n_same; i < n; ++i) {
        s.text.append(tokens[i]);
    }
    if (held.size() >= s.n_stored + n_piece) {
        store(s);
    }
    return true;
}

void ngram_drafter::store(sequence & s) {
    const auto & tokens = s.text.tokens();
    if (store_ == nullptr || tokens.size() <= s.n_stored) {
        return;
    }
    store_->add(tokens.data() + s.n_stored - std::min(s.n_stored, n_before), tokens.data() + tokens.size());
    s.n_stored = tokens.size();
}

void ngram_drafter::propose(int32_t seq_id, int32_t n_max, int32_t n_nodes, int32_t top_k,
                            std::vector<ngram_node> & nodes) {
    check(seq_id);
    nodes.clear();
    ngram_index & text     = sequences_[static_cast<size_t>(seq_id)].text;
    const size_t  n_tokens = text.tokens().size();
    for (const draft_candidate & c : forced(seq_id)) {
        const auto n = static_cast<int32_t>(nodes.size());
        if (n >= std::min(n_max, n_nodes)) {
            break;
        }
        nodes.push_back({ n - 1, c.id, c.p, n + 1, /*.is_forced =*/true });
        if (n_tokens > 0) {
            text.append(c.id);
        }
    }
    n_forced_ = static_cast<int32_t>(nodes.size());
    go_on(seq_id, n_max, n_nodes, top_k, nodes);
    text.truncate(n_tokens);
}

// Appends what follows the text and the forced tokens, which are appended to it.
void ngram_drafter::go_on(int32_t seq_id, int32_t n_max, int32_t n_nodes, int32_t top_k,
                          std::vector<ngram_node> & nodes) {
    const auto & tokens = sequences_[static_cast<size_t>(seq_id)].text.tokens();
    const auto * begin  = tokens.data();
    const auto * end    = begin + tokens.size();
    if (n_forced_ >= std::min(n_max, n_nodes) || top_k < 1 || begin == end) {
        return;
    }
    sequences_[static_cast<size_t>(seq_id)].text.find(begin, end, n_votes, matches_);
    votes_.clear();
    for (const auto & m : matches_) {
        // tokens that stand for an image are never drafted
        const auto * last = std::find_if(begin + m.place, end, [](llama_token token) { return token < 0; });
        if (last != begin + m.place) {
            const auto n = static_cast<size_t>(last - (begin + m.place));
            votes_.push_back({ begin + m.place, n, m.length, last == end });
        }
    }
    int32_t longest = 0;
    for (const vote & v : votes_) {
        longest = std::max(longest, v.length);
    }
    stored_.clear();
    for (const ngram_store * store : { static_cast<const ngram_store *>(store_.get()), corpus_.get() }) {
        if (store != nullptr) {
            auto found = store->find(begin, end, n_votes, static_cast<size_t>(n_max));
            std::move(found.begin(), found.end(), std::back_inserter(stored_));
        }
    }
    for (const auto & m : stored_) {
        if (m.length > longest) { // the same occurrence may be in a store too
            votes_.push_back({ m.tokens.data(), m.tokens.size(), m.length, false });
        }
    }
    if (votes_.empty()) {
        return;
    }
    branches_.clear();
    const auto & rules = sequences_[static_cast<size_t>(seq_id)].rules;
    branch       root  = { 1.0f, 1.0f, (1u << votes_.size()) - 1, -1, 0 };
    if (rules) {
        drop_forbidden(root, n_forced_ - 1, nodes, *rules);
    }
    expand(root, n_forced_ - 1, top_k);
    const auto less = [](const branch & a, const branch & b) {
        return a.p_path < b.p_path;
    };
    while (!branches_.empty() && static_cast<int32_t>(nodes.size()) < n_nodes) {
        const auto best = std::max_element(branches_.begin(), branches_.end(), less);
        branch     b    = *best;
        branches_.erase(best);
        size_t first = 0;
        while ((b.votes >> first & 1u) == 0) {
            ++first;
        }
        nodes.push_back({ b.parent, votes_[first].token(static_cast<size_t>(b.depth - 1)), b.p, b.depth + n_forced_ });
        if (b.depth + n_forced_ < n_max) {
            if (rules) {
                drop_forbidden(b, static_cast<int32_t>(nodes.size()) - 1, nodes, *rules);
            }
            expand(b, static_cast<int32_t>(nodes.size()) - 1, top_k);
        }
    }
}

// Takes away the votes of occurrences that go on after a node with a token that the grammar forbids.
void ngram_drafter::drop_forbidden(branch & b, int32_t node, const std::vector<ngram_node> & nodes,
                                   grammar_lookahead & rules) {
    const auto               depth = static_cast<size_t>(b.depth);
    std::vector<llama_token> path, tokens;
    std::vector<size_t>      voters;
    for (int32_t i = node; i >= 0; i = nodes[static_cast<size_t>(i)].parent) {
        path.insert(path.begin(), nodes[static_cast<size_t>(i)].token);
    }
    for (size_t i = 0; i < votes_.size(); ++i) {
        if ((b.votes >> i & 1u) != 0 && votes_[i].has_token(depth)) {
            tokens.push_back(votes_[i].token(depth));
            voters.push_back(i);
        }
    }
    const std::vector<bool> allowed = rules.allowed(path, tokens);
    for (size_t i = 0; i < voters.size(); ++i) {
        b.votes &= allowed[i] ? ~0u : ~(1u << voters[i]);
    }
}

// Appends the tokens that follow the occurrences of a branch.
void ngram_drafter::expand(const branch & b, int32_t node, int32_t top_k) {
    const auto depth   = static_cast<size_t>(b.depth);
    float      all     = 0.0f;
    float      longest = 0.0f;
    for (size_t i = 0; i < votes_.size(); ++i) {
        if ((b.votes >> i & 1u) != 0) {
            const float length = static_cast<float>(votes_[i].length + b.depth);
            longest            = std::max(longest, length);
            all += votes_[i].has_token(depth) ? length * length : 0.0f;
        }
    }
    all += longest * novelty;
    const size_t n_before = branches_.size();
    uint32_t     left     = b.votes;
    for (size_t i = 0; i < votes_.size(); ++i) {
        if ((left >> i & 1u) == 0 || !votes_[i].has_token(depth)) {
            continue;
        }
        const llama_token token  = votes_[i].token(depth);
        uint32_t          voters = 0;
        float             sum    = 0.0f;
        for (size_t j = i; j < votes_.size(); ++j) {
            if ((left >> j & 1u) != 0 && votes_[j].has_token(depth) && votes_[j].token(depth) == token) {
                const float length = static_cast<float>(votes_[j].length + b.depth);
                sum += length * length;
                voters |= 1u << j;
            }
        }
        left &= ~voters;
        const float p = sum / all;
        branches_.push_back({ b.p_path * p, p, voters, node, b.depth + 1 });
    }
    const auto first = branches_.begin() + static_cast<std::ptrdiff_t>(n_before);
    std::stable_sort(first, branches_.end(), [](const branch & x, const branch & y) { return x.p > y.p; });
    if (branches_.size() > n_before + static_cast<size_t>(top_k)) {
        branches_.resize(n_before + static_cast<size_t>(top_k));
    }
}

} // namespace eagle3
