// Replays recorded acceptance at recorded costs, in simulated time, with the planner's own sources.
//
//     replay RECORDINGS SCENARIOS N_SEEDS      tokens per second of each scenario with each seed: with the planner,
//                                              plain, and with an oracle
//     replay --constants                       the planner's constants and their values
//
// benchmarks/planner.py writes both files and describes their content. PLANNER_SIDES=planner leaves the other two out.

#include "constants.h"
#include "machine.h"
#include "policy/planner.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
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

using namespace replay;

namespace {

// returns the tokens that a draft gives, the one after it included
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
    run(const scenario & s, const std::vector<recording> & recordings) : s_(s), m(s, recordings), head_drafts(m) {
        if (m.has_text) {
            ngram = std::make_shared<eagle3::ngram_drafter>(m.n_seqs);
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
        if (m.replays) {
            params.n_snapshots = 0;
        }
        std::vector<eagle3::priced_drafter> heads;
        if (m.head != "none") {
            heads.push_back({ &head_drafts, shared(m.begin), shared(m.step) });
        }
        plan = std::make_unique<eagle3::planner>(std::move(heads), ngram,
                                                 shared(s.text("told").empty() ? m.target : s.curve("told")), params);
        for (size_t i = 0; i < static_cast<size_t>(m.n_seqs); ++i) {
            begin_text(i);
        }
    }

    void begin_text(size_t seq) {
        const auto id = static_cast<llama_seq_id>(seq);
        plan->reset(id);
        if (ngram) {
            ngram->begin(id);
            ngram->update(id, 0, m.of[seq]->tokens.data(), static_cast<size_t>(m.at[seq]),
                          static_cast<size_t>(m.of[seq]->n_prompt));
        }
        if (m.head != "none") {
            if (plan->may_wait(m.n_seqs) != 0) {
                m.n_waiting[seq] = m.of[seq]->n_prompt;
            } else {
                m.spend(m.us_row * m.of[seq]->n_prompt);
                m.n_waiting[seq] = 1;
            }
        }
    }

    // Yields the tokens of one pass with these drafts; returns its microseconds as the planner measures them
    double verify(const std::vector<draft_tree> & drafts, std::vector<std::vector<llama_token>> & tokens,
                  int32_t & n_rows, double & other) {
        const auto n_seqs  = static_cast<size_t>(m.n_seqs);
        int32_t    n_least = 1000, n_most = 0;
        n_rows = 0;
        tokens.assign(n_seqs, {});
        std::map<int32_t, int32_t> pieces; // number of rows of a sequence -> rows of all such sequences
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
            if (m.head != "none" && m.n_waiting[i] > 128 && !plan->may_wait(m.n_seqs)) {
                other += m.us_row * m.n_waiting[i];
                m.n_waiting[i] = 1;
            }
            if (ngram) {
                ngram->update(static_cast<int32_t>(i), static_cast<size_t>(m.at[i]), tokens[i].data(), tokens[i].size(),
                              static_cast<size_t>(m.of[i]->n_prompt));
            }
            m.at[i] += n;
        }
        m.spend(other);
        for (size_t i = 0; i < n_seqs; ++i) {
            if (m.ended(i) && n_emitted < n_limit) {
                m.start(i);
                begin_text(i);
            }
        }
        return seen;
    }

    // returns tokens per second; oracle: in place of the planner, at this price (tokens per microsecond)
    double go(int32_t n_tokens, const char * side, double price) {
        const bool is_planner = !std::strcmp(side, "planner"), is_oracle = !std::strcmp(side, "oracle");
        std::vector<eagle3::draft_request>    requests(static_cast<size_t>(m.n_seqs));
        std::vector<std::vector<llama_token>> tokens;
        std::vector<draft_tree>               drafts(static_cast<size_t>(m.n_seqs));
        // in real work, reading a prompt counts
        const double                          t_start = s_.count("n_tokens", 1500) == 0 ? 0.0 : m.now;
        n_limit                                       = n_tokens;
        while (n_emitted < n_tokens) {
            int32_t n_extra = 0, n_replay_max = 0, n_rows = 0;
            for (size_t i = 0; i < requests.size(); ++i) {
                n_extra += m.n_replay[i];
                n_replay_max = std::max(n_replay_max, m.n_replay[i]);
                requests[i]  = { static_cast<llama_seq_id>(i),
                                 m.of[i]->tokens[static_cast<size_t>(m.at[i]) - 1],
                                 m.at[i] - 1,
                                 1000,
                                 1000,
                                 1000 };
            }
            if (is_planner) {
                for (eagle3::draft_request & r : requests) {
                    r.n_room = n_replay_max > 8 ? 0 : 1000;
                }
                drafts = plan->propose(requests, n_extra);
            } else if (is_oracle) {
                draft_best(drafts, price);
            }
            double       other = 0.0;
            const double us    = verify(drafts, tokens, n_rows, other);
            if (is_planner) {
                for (size_t i = 0; i < requests.size(); ++i) {
                    plan->judge(requests[i].seq_id, tokens[i]);
                }
                plan->finish(n_rows, us, other);
            }
        }
        return 1e6 * n_emitted / (m.now - t_start);
    }

    // returns an oracle's draft: it knows the text, and all drafts of head and text
    void draft_best(std::vector<draft_tree> & drafts, double price) {
        const auto           n_seqs = static_cast<size_t>(m.n_seqs);
        std::vector<int32_t> by_head(n_seqs), by_ngram(n_seqs);
        int32_t              deepest = 0, longest = 0;
        for (size_t i = 0; i < n_seqs; ++i) {
            for (int32_t depth = 1; m.head != "none" && depth <= 32; ++depth) {
                const level found = m.candidates(i, depth, true, 0);
                if (std::find(found.tokens.begin(), found.tokens.end(), m.truth(i, depth - 1)) == found.tokens.end()) {
                    break;
                }
                by_head[i] = depth;
            }
            if (ngram) {
                ngram->propose(static_cast<int32_t>(i), m.n_nodes_max, m.n_nodes_max, m.n_top, suggested_);
                int32_t at = -1;
                for (size_t k = 0; k < suggested_.size(); ++k) {
                    if (suggested_[k].parent == at && suggested_[k].token == m.truth(i, by_ngram[i])) {
                        at = static_cast<int32_t>(k);
                        ++by_ngram[i];
                    }
                }
            }
            deepest = std::max(deepest, by_head[i]);
            longest = std::max({ longest, by_head[i], by_ngram[i] });
        }
        double  best   = -1e30;
        int32_t best_d = 0, best_c = 0, n_wait = 0;
        for (const int32_t n : m.n_waiting) {
            n_wait += std::clamp(n, 1, 16);
        }
        for (int32_t d = 0; d <= deepest; ++d) {
            const double t_draft =
                d == 0       ? 0.0
                : m.deepens  ? m.draft_us(m.begin, n_wait) + (d - 1) * m.draft_us(m.step, m.n_seqs)
                : m.parallel ? m.begin.at(n_wait) +
                                   (d > 1 ? std::max(0.0f, m.step.at((d - 1) * m.n_seqs) - m.begin.at(1)) : 0.0f)
                             : m.begin.at(n_wait) + (d - 1) * (m.n_unroll > 1 ? m.unrolled : 1.0) * m.step.at(m.n_seqs);
            for (int32_t c = 0; c <= longest; ++c) {
                int32_t n_right = 0, n_rows = 0;
                for (size_t i = 0; i < n_seqs; ++i) {
                    const int32_t n = std::min(std::max(std::min(by_head[i], d), by_ngram[i]), c);
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
            const int32_t right = std::min(std::max(std::min(by_head[i], best_d), by_ngram[i]), best_c);
            const int32_t n     = m.uniform ? best_c : right;
            drafts[i]           = {};
            for (int32_t k = 0; k < n; ++k) {
                drafts[i].tokens.push_back(k < right ? m.truth(i, k) : -9);
                drafts[i].parents.push_back(k - 1);
            }
        }
    }

    const scenario &                       s_;
    machine                                m;
    source                                 head_drafts;
    std::shared_ptr<eagle3::ngram_drafter> ngram;
    std::unique_ptr<eagle3::planner>       plan;
    int64_t                                n_emitted = 0, n_limit = 0;

  private:
    std::vector<eagle3::ngram_node> suggested_;
    double                          t_oracle_ = 0.0;
};

// A seed orders the texts, and draws noise and the head's candidates where it is wrong. Each of `fresh` texts has a
// planner of its own; else one planner drafts for all.
double rate(scenario s, const std::vector<recording> & recordings, const char * side, double price, int32_t seed) {
    if (!std::strcmp(side, "plain")) {
        s.values["head"] = "none";
        s.values["text"] = "0";
    }
    std::vector<std::string> texts;
    std::istringstream       in(s.text("texts"));
    for (std::string id; std::getline(in, id, ',');) {
        texts.push_back(id);
    }
    if (seed > 0) {
        std::mt19937 rng(static_cast<uint32_t>(seed));
        std::shuffle(texts.begin(), texts.end(), rng);
    }
    std::string all = texts.front();
    for (size_t i = 1; i < texts.size(); ++i) {
        all += "," + texts[i];
    }
    const int32_t n_fresh = s.count("fresh", 0);
    const auto    length  = [&](size_t i) {
        return static_cast<int32_t>(recordings[std::stoul(texts[i])].levels.size());
    };
    int32_t n_tokens = s.count("n_tokens", 1500); // 0: each text once
    for (size_t i = 0; s.count("n_tokens", 1500) == 0 && i < texts.size(); ++i) {
        n_tokens += length(i);
    }
    s.values["texts"] = all;
    s.values["seed"]  = std::to_string(seed);
    if (n_fresh == 0) {
        return run(s, recordings).go(n_tokens, side, price);
    }
    const size_t n = std::min(texts.size(), static_cast<size_t>(n_fresh));
    double       t = 0.0;
    for (size_t i = 0; i < n; ++i) {
        s.values["texts"] = texts[i] + "," + all;
        s.values["seed"]  = std::to_string(100 * seed + static_cast<int32_t>(i));
        t += 1.0 / run(s, recordings).go(s.count("n_tokens", 0) == 0 ? length(i) : n_tokens, side, price);
    }
    return static_cast<double>(n) / t;
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
        r.draw = draw;
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
        const eagle3::planner  all({}, nullptr, curve, params);
        for (const auto & [name, value] : replay::known()) {
            std::printf("%s %.9g\n", name.c_str(), value);
        }
        return 0;
    }
    const std::vector<recording> recordings = read_recordings(argv[1]);
    const char *                 sides      = std::getenv("PLANNER_SIDES");
    const int32_t                n_seeds    = std::stoi(argv[3]);
    std::ifstream                in(argv[2]);
    for (std::string line; std::getline(in, line);) {
        scenario           s;
        std::istringstream words(line);
        for (std::string word; words >> word;) {
            const size_t at              = word.find('=');
            s.values[word.substr(0, at)] = word.substr(at + 1);
        }
        const auto print = [&](double value) {
            std::printf("%.9g ", value);
        };
        std::vector<double> plain;
        for (int32_t seed = 0; seed < n_seeds; ++seed) {
            print(rate(s, recordings, "planner", 0.0, seed));
        }
        for (int32_t seed = 0; !sides && seed < n_seeds; ++seed) {
            print(plain.emplace_back(rate(s, recordings, "plain", 0.0, seed)));
        }
        for (int32_t seed = 0; !sides && seed < n_seeds; ++seed) {
            double best = plain[static_cast<size_t>(seed)];
            for (int i = 0; i < 4; ++i) {
                best = rate(s, recordings, "oracle", 1e-6 * best, seed);
            }
            print(best);
        }
        std::printf("\n");
    }
    return 0;
}
