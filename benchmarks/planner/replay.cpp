// Replays recorded acceptance at recorded costs, in simulated time, with the planner's own sources.
//
//     replay RECORDINGS SCENARIOS      tokens per second of each scenario: plain, with the planner, with an oracle
//     replay --constants               the planner's constants and their values
//
// benchmarks/planner.py writes both files and says what they hold. PLANNER_SIDES=planner leaves the other two out.

#include "constants.h"
#include "planner/planner.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace replay {

namespace {

std::map<std::string, double> & known() {
    static std::map<std::string, double> values;
    return values;
}

} // namespace

double constant(const char * name, double value) {
    static const std::map<std::string, double> given = [] {
        std::map<std::string, double> result;
        const char *                  text = std::getenv("PLANNER");
        std::istringstream            in(text ? text : "");
        for (std::string word; in >> word;) {
            const size_t at            = word.find('=');
            result[word.substr(0, at)] = std::stod(word.substr(at + 1));
        }
        return result;
    }();
    known()[name] = value;
    const auto it = given.find(name);
    return it == given.end() ? value : it->second;
}

} // namespace replay

namespace {

using eagle3::cost_curve;
using eagle3::draft_guess;
using eagle3::draft_node;
using eagle3::draft_tree;

// the head's candidates for one token
struct level {
    std::vector<int32_t> tokens;
    std::vector<float>   probs;
};

struct recording {
    eagle3::draw_kind               draw;
    int32_t                         n_prompt;
    std::vector<int32_t>            tokens;
    std::vector<std::vector<level>> levels; // [token behind n_prompt + 1][depth - 1]
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

uint32_t mix(uint32_t a, uint32_t b) {
    uint32_t x = a * 0x9E3779B9u ^ (b + 0x7F4A7C15u);
    x ^= x >> 16;
    x *= 0x85EBCA6Bu;
    x ^= x >> 13;
    x *= 0xC2B2AE35u;
    return x ^ x >> 16;
}

// The target and the head of one scenario. Its clock is the true time; what the planner is shown has noise on it.
class machine {
  public:
    machine(const scenario & s, const std::vector<recording> & recordings) :
        n_seqs(s.count("n_seqs", 1)), n_top(s.count("top_k", 1)), n_nodes_max(s.count("n_nodes", 32)),
        uniform(s.count("uniform", 0) != 0), replays(s.count("replays", 0) != 0), has_text(s.count("text", 0) != 0),
        parallel(s.count("parallel", 0) != 0), n_unroll(s.count("n_unroll", 1)), head(s.text("head")),
        target(s.curve("target")), begin(s.curve("begin")), step(s.curve("step")), unrolled(s.number("unrolled", 0.3)),
        us_other(1000.0 * s.number("other", 0.3)), us_row(1000.0 * s.number("row", 0.14)),
        noise(s.number("noise", 0.03)), growth(s.number("growth", 0.0)),
        rng(static_cast<uint32_t>(s.count("seed", 0))) {
        std::istringstream in(s.text("texts"));
        for (std::string id; std::getline(in, id, ',');) {
            texts.push_back(&recordings[std::stoul(id)]);
        }
        const auto n = static_cast<size_t>(n_seqs);
        at.resize(n);
        of.resize(n);
        text_index.resize(n);
        n_waiting.resize(n);
        n_replay.resize(n);
        for (size_t i = 0; i < n; ++i) {
            start(i);
        }
    }

    // the next text in this sequence
    void start(size_t seq) {
        text_index[seq] = n_started++;
        of[seq]         = texts[static_cast<size_t>(text_index[seq]) % texts.size()];
        at[seq]         = of[seq]->n_prompt + 1;
        n_waiting[seq]  = 0;
        n_replay[seq]   = 0;
    }

    bool ended(size_t seq) const { return static_cast<size_t>(at[seq]) >= of[seq]->tokens.size(); }

    int32_t truth(size_t seq, int32_t ahead) const {
        const auto i = static_cast<size_t>(at[seq] + ahead);
        return i < of[seq]->tokens.size() ? of[seq]->tokens[i] : -7;
    }

    // something took so long
    void spend(double us) {
        now += us;
        double seen = us;
        if (noise > 0.0) {
            seen *= std::exp(noise * normal(rng));
            seen *= mix(++n_spent, 5) % 100 == 0 ? 3.0 : 1.0; // interrupted
        }
        now_seen += seen;
    }

    double verify_us(int32_t n_rows) const {
        double n_past = 0.0;
        for (const int32_t n : at) {
            n_past += n;
        }
        return target.at(n_rows) * (1.0 + growth * n_past / 1000.0);
    }

    // the head's candidates behind a node of a sequence; is_right: it is the text so far
    level candidates(size_t seq, int32_t depth, bool is_right, uint32_t salt) const {
        const recording & r = *of[seq];
        const auto        i = static_cast<size_t>(at[seq] - r.n_prompt - 1);
        const auto        d = static_cast<size_t>(depth - 1);
        level             found;
        if (is_right && i < r.levels.size() && d < r.levels[i].size()) {
            found = r.levels[i][d];
        } else if (is_right && i + d < r.levels.size()) {
            found = r.levels[i + d][0];
        } else {
            found.probs =
                r.astray[mix(static_cast<uint32_t>(at[seq]) + salt, static_cast<uint32_t>(depth)) % r.astray.size()];
            for (size_t j = 0; j < found.probs.size(); ++j) {
                found.tokens.push_back(1000000 + static_cast<int32_t>(j));
            }
        }
        const bool is_bad =
            head == "random" || head == "useless" || (head == "changing" && text_index[seq] / 4 % 2 == 1);
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

    std::vector<draft_guess> guesses() const {
        std::vector<draft_guess> result;
        const recording &        r = *texts.back();
        for (size_t i = 3; i < r.levels.size() && result.size() < 7; i += 5) {
            const bool is_right = head == "useless" || head == "random"
                                      ? false
                                      : r.levels[i][0].tokens[0] == r.tokens[static_cast<size_t>(r.n_prompt) + 1 + i];
            float      p        = r.levels[i][0].probs[0];
            p = head == "unsure" ? 0.01f : head == "random" ? 0.02f : head == "oversure" ? std::pow(p, 0.25f) : p;
            result.push_back({ 0, p, is_right });
        }
        return result;
    }

    int32_t      n_seqs, n_top, n_nodes_max;
    bool         uniform, replays, has_text, parallel;
    int32_t      n_unroll;
    std::string  head;
    cost_curve   target, begin, step;
    double       unrolled, us_other, us_row, noise, growth;
    double       now = 0.0, now_seen = 0.0;
    std::mt19937 rng;

    std::normal_distribution<double> normal;
    uint32_t                         n_spent = 0;

    std::vector<const recording *> texts;
    int32_t                        n_started = 0;
    std::vector<int32_t>           at; // [sequence]: tokens that are known
    std::vector<const recording *> of;
    std::vector<int32_t>           text_index, n_waiting, n_replay;
};

class source : public eagle3::draft_source {
  public:
    explicit source(machine & m) : m_(m), guesses_(m.guesses()) {}

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
        m_.spend(m_.begin.at(std::max(n_rows, 1)));
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
            m_.spend(m_.step.at(static_cast<int32_t>(nodes.size())));
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

    std::vector<draft_guess> take_guesses() override {
        std::vector<draft_guess> result;
        result.swap(guesses_);
        return result;
    }

    double time_us() const override { return m_.now_seen; }

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
    std::vector<draft_guess> guesses_;
    int32_t                  n_levels_ = 1;
};

// tokens that a draft gives, the one behind it included
int32_t accepted(const machine & m, size_t seq, const draft_tree & draft) {
    int32_t node = -1, n = 1;
    for (size_t i = 0; i < draft.tokens.size(); ++i) {
        if (draft.parents[i] == node && draft.tokens[i] == m.truth(seq, n - 1)) {
            node = static_cast<int32_t>(i);
            ++n;
        }
    }
    const auto left = static_cast<int32_t>(m.of[seq]->tokens.size()) - m.at[seq];
    return std::min(n, left);
}

class run {
  public:
    run(const scenario & s, const std::vector<recording> & recordings) : s_(s), m(s, recordings) {
        if (m.has_text) {
            text = std::make_shared<eagle3::text_source>(m.n_seqs);
        }
        const auto shared = [](const cost_curve & curve) {
            return std::make_shared<cost_curve>(curve);
        };
        eagle3::planner_params params;
        params.n_max        = s.count("n_max", 32);
        params.n_nodes_max  = m.n_nodes_max;
        params.n_leaves_max = s.count("n_leaves", 1);
        params.top_k        = m.n_top;
        params.n_seq_max    = m.n_seqs;
        params.uniform      = m.uniform;
        params.replays      = m.replays;
        std::unique_ptr<source> head;
        if (m.head != "none") {
            head = std::make_unique<source>(m);
        }
        plan = std::make_unique<eagle3::planner>(std::move(head), text,
                                                 shared(s.text("told").empty() ? m.target : s.curve("told")),
                                                 shared(m.begin), shared(m.step), params);
        for (size_t i = 0; i < static_cast<size_t>(m.n_seqs); ++i) {
            begin_text(i);
        }
    }

    void begin_text(size_t seq) {
        const auto id = static_cast<llama_seq_id>(seq);
        plan->reset(id);
        if (text) {
            text->begin(id);
            text->update(id, 0, m.of[seq]->tokens.data(), static_cast<size_t>(m.at[seq]),
                         static_cast<size_t>(m.of[seq]->n_prompt));
        }
        if (m.head != "none") {
            if (plan->may_wait(id, m.n_seqs)) {
                m.n_waiting[seq] = m.of[seq]->n_prompt;
            } else {
                m.spend(m.us_row * m.of[seq]->n_prompt);
                m.n_waiting[seq] = 1;
            }
        }
    }

    // Tokens of one pass with these drafts; returns its microseconds as the planner sees them
    double verify(const std::vector<draft_tree> & drafts, std::vector<std::vector<llama_token>> & tokens,
                  int32_t & n_rows, double & other) {
        const auto n_seqs  = static_cast<size_t>(m.n_seqs);
        int32_t    n_least = 1000, n_most = 0;
        n_rows = 0;
        tokens.assign(n_seqs, {});
        std::map<int32_t, int32_t> pieces; // rows of sequences by how many rows each has
        for (size_t i = 0; i < n_seqs; ++i) {
            const auto n = static_cast<int32_t>(drafts[i].tokens.size()) + 1 + m.n_replay[i];
            n_least      = std::min(n_least, n);
            n_most       = std::max(n_most, n);
            pieces[n] += n;
            n_rows += n;
        }
        double us = 0.0;
        if (m.uniform && n_least != n_most) {
            for (const auto & piece : pieces) {
                us += m.verify_us(piece.second);
            }
        } else {
            us = m.verify_us(n_rows);
        }
        const double before = m.now_seen;
        m.spend(us);
        const double seen = m.now_seen - before;
        other             = m.us_other;
        for (size_t i = 0; i < n_seqs; ++i) {
            const int32_t n = accepted(m, i, drafts[i]);
            for (int32_t k = 0; k < n; ++k) {
                tokens[i].push_back(m.truth(i, k));
            }
            if (m.replays) {
                m.n_replay[i] = n == 1 + static_cast<int32_t>(drafts[i].tokens.size()) ? 0 : m.n_replay[i] + n;
            }
            n_emitted += n;
            m.n_waiting[i] += n;
            if (m.head != "none" && m.n_waiting[i] > 128 && !plan->may_wait(static_cast<llama_seq_id>(i), m.n_seqs)) {
                other += m.us_row * m.n_waiting[i];
                m.n_waiting[i] = 1;
            }
            if (text) {
                text->update(static_cast<int32_t>(i), static_cast<size_t>(m.at[i]), tokens[i].data(), tokens[i].size(),
                             static_cast<size_t>(m.of[i]->n_prompt));
            }
            m.at[i] += n;
        }
        m.spend(other);
        for (size_t i = 0; i < n_seqs; ++i) {
            if (m.ended(i)) {
                m.start(i);
                begin_text(i);
            }
        }
        return seen;
    }

    // tokens per second; oracle: instead of the planner, at this price (tokens per microsecond)
    double go(int32_t n_tokens, const char * side, double price) {
        const bool                is_planner = !std::strcmp(side, "planner"), is_oracle = !std::strcmp(side, "oracle");
        std::vector<llama_seq_id> ids;
        std::vector<llama_token>  ids_last(static_cast<size_t>(m.n_seqs));
        std::vector<int32_t>      rooms(static_cast<size_t>(m.n_seqs), 1000);
        std::vector<eagle3::draw_kind>        draws(static_cast<size_t>(m.n_seqs));
        std::vector<std::vector<llama_token>> tokens;
        std::vector<draft_tree>               drafts(static_cast<size_t>(m.n_seqs));
        for (int32_t i = 0; i < m.n_seqs; ++i) {
            ids.push_back(i);
        }
        const double t_start = m.now;
        while (n_emitted < n_tokens) {
            int32_t n_extra = 0, n_replay_max = 0, n_rows = 0;
            for (size_t i = 0; i < ids.size(); ++i) {
                ids_last[i] = m.of[i]->tokens[static_cast<size_t>(m.at[i]) - 1];
                draws[i]    = m.of[i]->draw;
                n_extra += m.n_replay[i];
                n_replay_max = std::max(n_replay_max, m.n_replay[i]);
            }
            if (is_planner) {
                std::fill(rooms.begin(), rooms.end(), n_replay_max > 8 ? 0 : 1000);
                drafts = plan->propose(ids, ids_last, rooms, n_extra, {}, {}, draws);
            } else if (is_oracle) {
                draft_best(drafts, price);
            }
            double       other = 0.0;
            const double us    = verify(drafts, tokens, n_rows, other);
            if (is_planner) {
                for (size_t i = 0; i < ids.size(); ++i) {
                    plan->judge(ids[i], tokens[i]);
                }
                plan->finish(n_rows, us, other);
            }
        }
        return 1e6 * n_emitted / (m.now - t_start);
    }

    // what an oracle drafts: it knows the text, and all that head and text would draft
    void draft_best(std::vector<draft_tree> & drafts, double price) {
        const auto           n_seqs = static_cast<size_t>(m.n_seqs);
        std::vector<int32_t> by_head(n_seqs), by_text(n_seqs);
        int32_t              deepest = 0, longest = 0;
        for (size_t i = 0; i < n_seqs; ++i) {
            for (int32_t depth = 1; m.head != "none" && depth <= 32; ++depth) {
                const level found = m.candidates(i, depth, true, 0);
                if (std::find(found.tokens.begin(), found.tokens.end(), m.truth(i, depth - 1)) == found.tokens.end()) {
                    break;
                }
                by_head[i] = depth;
            }
            if (text) {
                text->propose(static_cast<int32_t>(i), 32, 32, m.n_top, suggested_);
                int32_t at = -1;
                for (size_t k = 0; k < suggested_.size(); ++k) {
                    if (suggested_[k].parent == at && suggested_[k].token == m.truth(i, by_text[i])) {
                        at = static_cast<int32_t>(k);
                        ++by_text[i];
                    }
                }
            }
            deepest = std::max(deepest, by_head[i]);
            longest = std::max({ longest, by_head[i], by_text[i] });
        }
        double  best   = -1e30;
        int32_t best_d = 0, best_c = 0, n_wait = 0;
        for (const int32_t n : m.n_waiting) {
            n_wait += std::clamp(n, 1, 16);
        }
        for (int32_t d = 0; d <= deepest; ++d) {
            const double t_draft =
                d == 0       ? 0.0
                : m.parallel ? m.begin.at(n_wait) +
                                   (d > 1 ? std::max(0.0f, m.step.at((d - 1) * m.n_seqs) - m.begin.at(1)) : 0.0f)
                             : m.begin.at(n_wait) + (d - 1) * (m.n_unroll > 1 ? m.unrolled : 1.0) * m.step.at(m.n_seqs);
            for (int32_t c = 0; c <= longest; ++c) {
                int32_t n_right = 0, n_rows = 0;
                for (size_t i = 0; i < n_seqs; ++i) {
                    const int32_t n = std::min(std::max(std::min(by_head[i], d), by_text[i]), c);
                    n_right += n;
                    n_rows += m.uniform ? c : n;
                }
                if (n_rows > m.n_nodes_max) {
                    break;
                }
                n_rows += m.n_seqs;
                const double value = m.n_seqs + n_right - price * (t_draft + m.verify_us(n_rows) + m.us_other);
                if (value > best) {
                    best      = value;
                    best_d    = d;
                    best_c    = c;
                    t_oracle_ = t_draft;
                }
            }
        }
        m.spend(t_oracle_);
        for (size_t i = 0; i < n_seqs; ++i) {
            if (best_d > 0) {
                m.n_waiting[i] = 0;
            }
            const int32_t right = std::min(std::max(std::min(by_head[i], best_d), by_text[i]), best_c);
            const int32_t n     = m.uniform ? best_c : right;
            drafts[i]           = {};
            for (int32_t k = 0; k < n; ++k) {
                drafts[i].tokens.push_back(k < right ? m.truth(i, k) : -9);
                drafts[i].parents.push_back(k - 1);
            }
        }
    }

    const scenario &                     s_;
    machine                              m;
    std::shared_ptr<eagle3::text_source> text;
    std::unique_ptr<eagle3::planner>     plan;
    int64_t                              n_emitted = 0;

  private:
    std::vector<eagle3::text_node> suggested_;
    double                         t_oracle_ = 0.0;
};

// of `fresh` texts each with a planner of its own, or of one that sees them all
double rate(scenario s, const std::vector<recording> & recordings, const char * side, double price) {
    if (!std::strcmp(side, "plain")) {
        s.values["head"] = "none";
        s.values["text"] = "0";
    }
    const int32_t n_fresh = s.count("fresh", 0), n_tokens = s.count("n_tokens", 1500);
    if (n_fresh == 0) {
        return run(s, recordings).go(n_tokens, side, price);
    }
    double             t = 0.0;
    std::istringstream in(s.text("texts"));
    std::string        others = s.text("texts");
    int32_t            n      = 0;
    for (std::string id; std::getline(in, id, ',') && n < n_fresh; ++n) {
        s.values["texts"] = id + "," + others;
        s.values["seed"]  = std::to_string(n);
        t += 1.0 / run(s, recordings).go(n_tokens, side, price);
    }
    return n / t;
}

std::vector<recording> read_recordings(const char * path) {
    std::ifstream          in(path);
    size_t                 n_texts = 0;
    std::vector<recording> result;
    in >> n_texts;
    for (size_t i = 0; i < n_texts; ++i) {
        recording r;
        size_t    n_tokens = 0, n_positions = 0, n_astray = 0;
        int32_t   draw = 0;
        in >> draw;
        r.draw = static_cast<eagle3::draw_kind>(draw);
        in >> r.n_prompt >> n_tokens >> n_positions >> n_astray;
        r.tokens.resize(n_tokens);
        for (int32_t & t : r.tokens) {
            in >> t;
        }
        r.levels.resize(n_positions);
        for (auto & levels : r.levels) {
            size_t n_levels = 0;
            in >> n_levels;
            levels.resize(n_levels);
            for (level & l : levels) {
                size_t k = 0;
                in >> k;
                l.tokens.resize(k);
                l.probs.resize(k);
                for (size_t j = 0; j < k; ++j) {
                    in >> l.tokens[j] >> l.probs[j];
                }
            }
        }
        r.astray.resize(n_astray);
        for (auto & probs : r.astray) {
            size_t k = 0;
            in >> k;
            probs.resize(k);
            for (float & p : probs) {
                in >> p;
            }
        }
        result.push_back(r);
    }
    if (!in) {
        throw std::runtime_error("the recordings end too soon");
    }
    return result;
}

} // namespace

int main(int argc, char ** argv) {
    if (argc == 2 && !std::strcmp(argv[1], "--constants")) {
        const cost_curve       one({ { 1, 1.0 } });
        const auto             curve = std::make_shared<cost_curve>(one);
        eagle3::planner_params params;
        const eagle3::planner  all(nullptr, nullptr, curve, curve, curve, params);
        for (const auto & [name, value] : replay::known()) {
            std::printf("%s %.9g\n", name.c_str(), value);
        }
        return 0;
    }
    const std::vector<recording> recordings = read_recordings(argv[1]);
    const char *                 sides      = std::getenv("PLANNER_SIDES");
    std::ifstream                in(argv[2]);
    for (std::string line; std::getline(in, line);) {
        scenario           s;
        std::istringstream words(line);
        for (std::string word; words >> word;) {
            const size_t at              = word.find('=');
            s.values[word.substr(0, at)] = word.substr(at + 1);
        }
        const double planner = rate(s, recordings, "planner", 0.0);
        std::printf("%.9g", planner);
        if (!sides) {
            const double plain = rate(s, recordings, "plain", 0.0);
            double       best  = plain;
            for (int i = 0; i < 4; ++i) {
                best = rate(s, recordings, "oracle", 1e-6 * best);
            }
            std::printf(" %.9g %.9g", plain, best);
        }
        std::printf("\n");
    }
    return 0;
}
