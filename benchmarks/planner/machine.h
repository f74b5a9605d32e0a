// The inputs of a replay: recorded texts with the head's drafts along them, and a machine whose passes take recorded
// times, as a session of drafts for the planner.

#pragma once

#include "policy/planner.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace replay {

using eagle3::cost_curve;
using eagle3::draft_node;
using eagle3::draft_tree;

// the head's candidates for one token
struct level {
    std::vector<int32_t> tokens;
    std::vector<float>   probs;
};

struct recording {
    int32_t                         draw;
    int32_t                         n_prompt;
    std::vector<int32_t>            tokens;
    std::vector<std::vector<level>> levels; // [token after n_prompt + 1][depth - 1]
    std::vector<std::vector<float>> astray;
};

struct scenario {
    std::map<std::string, std::string> values;

    std::string text(const std::string & key) const {
        const auto it = values.find(key);
        return it == values.end() ? "" : it->second;
    }

    double number(const std::string & key, double otherwise) const {
        const auto it = values.find(key);
        return it == values.end() ? otherwise : std::stod(it->second);
    }

    int32_t count(const std::string & key, int32_t otherwise) const {
        return static_cast<int32_t>(number(key, otherwise));
    }

    cost_curve curve(const std::string & key) const {
        std::map<int32_t, double> curve;
        std::istringstream        in(text(key));
        for (std::string entry; std::getline(in, entry, ',');) {
            const size_t at                       = entry.find(':');
            curve[std::stoi(entry.substr(0, at))] = 1000.0 * std::stod(entry.substr(at + 1));
        }
        return cost_curve(curve);
    }
};

inline uint32_t mix(uint32_t a, uint32_t b) {
    uint32_t x = a * 0x9E3779B9u ^ (b + 0x7F4A7C15u);
    x ^= x >> 16;
    x *= 0x85EBCA6Bu;
    x ^= x >> 13;
    x *= 0xC2B2AE35u;
    return x ^ x >> 16;
}

// The target and the head of one scenario. Its clock is the true time; the planner gets times with noise.
class machine {
  public:
    machine(const scenario & s, const std::vector<recording> & recordings) :
        n_seqs(s.count("n_seqs", 1)), n_top(s.count("top_k", 1)), n_nodes_max(s.count("n_nodes", 32)),
        uniform(s.count("uniform", 0) != 0), replays(s.count("replays", 0) != 0), has_text(s.count("text", 0) != 0),
        parallel(s.count("parallel", 0) != 0), n_unroll(s.count("n_unroll", 1)), head(s.text("head")),
        target(s.curve("target")), begin(s.curve("begin")), step(s.curve("step")), unrolled(s.number("unrolled", 0.3)),
        us_other(1000.0 * s.number("other", 0.3)), us_row(1000.0 * s.number("row", 0.14)),
        noise(s.number("noise", 0.03)), growth(s.number("growth", 0.0)), deepens(!s.text("deeper").empty()),
        deeper(deepens ? s.curve("deeper") : target), deeper_level(1000.0 * s.number("deeper_level", 0.0)),
        seed(static_cast<uint32_t>(s.count("seed", 0))), rng(seed) {
        std::istringstream in(s.text("texts"));
        for (std::string id; std::getline(in, id, ',');) {
            texts.push_back(&recordings[std::stoul(id)]);
        }
        const auto n = static_cast<size_t>(n_seqs);
        at.resize(n);
        of.resize(n);
        ngram_index.resize(n);
        n_waiting.resize(n);
        n_replay.resize(n);
        for (size_t i = 0; i < n; ++i) {
            start(i);
        }
    }

    // starts the next text in this sequence
    void start(size_t seq) {
        ngram_index[seq] = n_started++;
        of[seq]         = texts[static_cast<size_t>(ngram_index[seq]) % texts.size()];
        at[seq]         = of[seq]->n_prompt + 1;
        n_waiting[seq]  = 0;
        n_replay[seq]   = 0;
    }

    bool ended(size_t seq) const { return static_cast<size_t>(at[seq]) >= of[seq]->tokens.size(); }

    int32_t truth(size_t seq, int32_t ahead) const {
        const auto i = static_cast<size_t>(at[seq] + ahead);
        return i < of[seq]->tokens.size() ? of[seq]->tokens[i] : -7;
    }

    // advances the clock by this time
    void spend(double us) {
        now += us;
        double seen = us;
        if (noise > 0.0) {
            seen *= std::exp(noise * normal(rng));
            seen *= mix(++n_spent, 5 + seed) % 100 == 0 ? 3.0 : 1.0; // interrupted
        }
        now_seen += seen;
    }

    // returns the mean of the sequences' known tokens, in thousands
    double depth() const {
        double n_past = 0.0;
        for (const int32_t n : at) {
            n_past += n;
        }
        return n_past / (1000.0 * n_seqs);
    }

    double verify_us(int32_t n_rows) const {
        return target.at(n_rows) * (1.0 + growth * n_seqs * depth()) + (deepens ? depth() * deeper.at(n_rows) : 0.0);
    }

    // returns the time of a level of the head, or of its first graph
    double draft_us(const cost_curve & curve, int32_t n) const { return curve.at(n) + depth() * deeper_level; }

    // returns the head's candidates after a node of a sequence; is_right: whether the node's path is the text so far
    level candidates(size_t seq, int32_t depth, bool is_right, uint32_t salt) const {
        const recording & r = *of[seq];
        const auto        i = static_cast<size_t>(at[seq] - r.n_prompt - 1);
        const auto        d = static_cast<size_t>(depth - 1);
        level             found;
        salt += 65537u * seed;
        if (is_right && i < r.levels.size() && d < r.levels[i].size()) {
            found = r.levels[i][d];
        } else if (is_right && i + d < r.levels.size()) {
            found = r.levels[i + d][0];
        } else {
            found.probs = r.astray.empty() ? std::vector<float>{ 0.5f }
                                           : r.astray[mix(static_cast<uint32_t>(at[seq]) + salt,
                                                          static_cast<uint32_t>(depth)) %
                                                      r.astray.size()];
            for (size_t j = 0; j < found.probs.size(); ++j) {
                found.tokens.push_back(1000000 + static_cast<int32_t>(j));
            }
        }
        const bool is_bad =
            head == "random" || head == "useless" || (head == "changing" && ngram_index[seq] / 4 % 2 == 1);
        for (size_t j = 0; j < found.probs.size(); ++j) {
            float & p = found.probs[j];
            if (is_bad) {
                found.tokens[j] = 2000000 + static_cast<int32_t>(j);
            }
            if (head == "random") {
                const float u =
                    static_cast<float>(mix(static_cast<uint32_t>(at[seq]) + salt, 77u + static_cast<uint32_t>(depth)) %
                                       1000) /
                    1000.0f;
                p = (j == 0 ? 0.3f : 0.1f) * u * u * u + 0.001f;
            } else if (head == "unsure") {
                p = 0.01f * std::pow(p, 0.05f);
            } else if (head == "oversure") {
                p = j == 0 ? std::pow(p, 0.25f) : 0.5f * p;
            }
        }
        found.tokens.resize(std::min(found.tokens.size(), static_cast<size_t>(n_top)));
        found.probs.resize(found.tokens.size());
        return found;
    }

    int32_t      n_seqs, n_top, n_nodes_max;
    bool         uniform, replays, has_text, parallel;
    int32_t      n_unroll;
    std::string  head;
    cost_curve   target, begin, step;
    double       unrolled, us_other, us_row, noise, growth;
    bool         deepens;      // passes take longer at depth:
    cost_curve   deeper;       // the target's by rows, per 1,000 tokens
    double       deeper_level; // and the head's
    double       now = 0.0, now_seen = 0.0;
    uint32_t     seed;
    std::mt19937 rng;

    std::normal_distribution<double> normal;
    uint32_t                         n_spent = 0;

    std::vector<const recording *> texts;
    int32_t                        n_started = 0;
    std::vector<int32_t>           at; // [sequence]: number of known tokens
    std::vector<const recording *> of;
    std::vector<int32_t>           ngram_index, n_waiting, n_replay;
};

class source : public eagle3::draft_session {
  public:
    explicit source(machine & m) : m_(m) {}

    void begin(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> &, int32_t top_k,
               int32_t n_steps) override {
        nodes_.clear();
        right_.clear();
        n_levels_      = n_steps;
        int32_t n_rows = 0;
        for (const llama_seq_id id : seq_ids) {
            int32_t & n = m_.n_waiting[static_cast<size_t>(id)];
            if (n > 16) {
                m_.spend(m_.us_row * (n - 1));
                n = 1;
            }
            n_rows += n;
            n = 0;
        }
        m_.spend(m_.draft_us(m_.begin, std::max(n_rows, 1)));
        for (const llama_seq_id id : seq_ids) {
            append(-1, id, top_k);
        }
        if (m_.parallel) {
            if (n_steps > 1) {
                m_.spend(
                    std::max(0.0f, m_.step.at((n_steps - 1) * static_cast<int32_t>(seq_ids.size())) - m_.begin.at(1)));
            }
            return;
        }
        for (size_t first = 0; n_steps > 1; --n_steps) {
            const size_t end = nodes_.size();
            m_.spend(m_.unrolled * m_.step.at(static_cast<int32_t>(seq_ids.size())));
            for (size_t i = first; i < end; ++i) {
                append(static_cast<int32_t>(i), nodes_[i].seq_id, top_k);
            }
            first = end;
        }
    }

    void expand(const std::vector<int32_t> & nodes, int32_t top_k) override {
        if (!m_.parallel) {
            m_.spend(m_.draft_us(m_.step, static_cast<int32_t>(nodes.size())));
        }
        for (const int32_t i : nodes) {
            const draft_node & n = nodes_[static_cast<size_t>(i)];
            if (!m_.parallel || n.depth < n_levels_) {
                append(i, n.seq_id, top_k);
            }
        }
    }

    const std::vector<draft_node> & nodes() const override { return nodes_; }

    bool    is_parallel() const override { return m_.parallel; }
    int32_t n_unroll() const override { return m_.n_unroll; }
    int32_t n_waiting(llama_seq_id id) const override { return m_.n_waiting[static_cast<size_t>(id)]; }
    int32_t n_expand() const override { return 128; }

    double t_draft_us() const override { return m_.now_seen; }

  private:
    void append(int32_t parent, llama_seq_id id, int32_t top_k) {
        const auto    seq      = static_cast<size_t>(id);
        const int32_t depth    = parent < 0 ? 1 : nodes_[static_cast<size_t>(parent)].depth + 1;
        const bool    is_right = parent < 0 || right_[static_cast<size_t>(parent)];
        const level   found    = m_.candidates(seq, depth, is_right, static_cast<uint32_t>(parent + 1));
        for (size_t j = 0; j < std::min(found.tokens.size(), static_cast<size_t>(top_k)); ++j) {
            nodes_.push_back({ parent, found.tokens[j], found.probs[j], depth, id });
            right_.push_back(is_right && found.tokens[j] == m_.truth(seq, depth - 1));
        }
    }

    machine &                m_;
    std::vector<draft_node>  nodes_;
    std::vector<bool>        right_;
    int32_t                  n_levels_ = 1;
};

} // namespace replay
