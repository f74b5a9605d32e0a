#include "policy/policy.h"

#include "error.h"
#include "module.h"
#include "nogil.h"
#include "py_draft.h"
#include "py_drafter.h"

#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <list>

namespace eagle3::python {

namespace {

using tokens_t = std::vector<llama_token>;

// A draft_session that is written in Python, to simulate a drafter.
class py_session : public draft_session {
  public:
    explicit py_session(py::object session) : session_(std::move(session)) {}

    void begin(const std::vector<llama_seq_id> & seq_ids, const tokens_t & ids_last, int32_t top_k,
               int32_t n_steps) override {
        nodes_.clear();
        append(session_.attr("begin")(seq_ids, ids_last, top_k, n_steps));
    }

    void expand(const std::vector<int32_t> & nodes, int32_t top_k) override {
        append(session_.attr("expand")(nodes, top_k));
    }

    const std::vector<draft_node> & nodes() const override { return nodes_; }

    bool    is_parallel() const override { return session_.attr("is_parallel").cast<bool>(); }
    int32_t n_unroll() const override { return session_.attr("n_unroll").cast<int32_t>(); }
    int32_t n_expand() const override { return session_.attr("n_expand").cast<int32_t>(); }
    int32_t n_waiting(llama_seq_id seq_id) const override { return session_.attr("n_waiting")(seq_id).cast<int32_t>(); }
    double  t_draft_us() const override { return session_.attr("t_draft_us").cast<double>(); }

  private:
    void append(const py::handle & rows) {
        for (const auto & [parent, token, p, depth, seq_id] :
             rows.cast<std::vector<std::tuple<int32_t, llama_token, float, int32_t, llama_seq_id>>>()) {
            nodes_.push_back({ parent, token, p, depth, seq_id });
        }
    }

    py::object              session_;
    std::vector<draft_node> nodes_;
};

// A policy's drafters, as Python objects and as C++ interfaces.
struct py_drafters {
    explicit py_drafters(const std::vector<py::object> & objects) : objects(objects) {
        for (const py::object & object : objects) {
            if (py::isinstance<py_drafter>(object)) {
                real.push_back(object.cast<py_drafter *>());
                sessions.push_back(&real.back()->impl());
            } else {
                simulated.emplace_back(object);
                sessions.push_back(&simulated.back());
            }
        }
    }

    std::vector<priced_drafter> priced(const std::vector<std::shared_ptr<cost_curve>> & costs) const {
        const size_t n = sessions.size();
        if (!costs.empty() && costs.size() != 1 + 2 * n) {
            throw std::invalid_argument(
                format("policy: expected no costs, or %zu for %zu drafters, found %zu", 1 + 2 * n, n, costs.size()));
        }
        std::vector<priced_drafter> result;
        for (size_t i = 0; i < n; ++i) {
            const bool is_priced = !costs.empty();
            result.push_back(
                { sessions[i], is_priced ? costs[1 + 2 * i] : nullptr, is_priced ? costs[2 + 2 * i] : nullptr });
        }
        return result;
    }

    std::vector<py::object>      objects; // keeps them
    std::vector<py_drafter *>    real;
    std::list<py_session>        simulated;
    std::vector<draft_session *> sessions; // until the drafters are closed
};

// A policy, and the flag that keeps a second thread out.
class py_policy {
  public:
    py_policy(const std::vector<py::object> & drafters, const std::vector<std::shared_ptr<cost_curve>> & costs,
              std::shared_ptr<ngram_drafter> ngram, const planner_params & params) :
        drafters_(drafters),
        impl(drafters_.priced(costs), std::move(ngram), costs.empty() ? nullptr : costs.front(), params) {}

    std::vector<py_draft> propose(const std::vector<draft_request> & requests, int32_t n_rows_extra) {
        const busy_flag::scope          scope(busy);
        std::list<busy_flag::scope>     scopes;
        const std::vector<draft_tree> * drafts = nullptr;
        {
            std::optional<nogil> release;
            if (drafters_.simulated.empty()) {
                release.emplace();
            }
            for (py_drafter * drafter : drafters_.real) {
                scopes.emplace_back(drafter->busy);
                drafter->impl(); // throws if it is closed
            }
            drafts = &impl.propose(requests, n_rows_extra);
        }
        std::vector<py_draft> result;
        for (const draft_tree & draft : *drafts) {
            result.push_back(to_draft(draft));
        }
        return result;
    }

  private:
    py_drafters drafters_;

  public:
    policy    impl;
    busy_flag busy;
};

// A prior as plain numbers, which JSON can keep.
py::dict to_dict(const prior & p) {
    std::vector<std::pair<float, float>> accepted;
    for (const acceptance::weight & w : p.accepted) {
        accepted.emplace_back(w.mean, w.variance);
    }
    py::dict result;
    result["accepted"]    = accepted;
    result["log_p"]       = p.log_p;
    result["row"]         = p.row;
    result["worth"]       = p.worth;
    result["saved"]       = p.saved;
    result["for_prompts"] = p.for_prompts;
    result["for_drafts"]  = p.for_drafts;
    return result;
}

// Throws std::invalid_argument for a dict of another form: a file may have brought it.
prior to_prior(const py::dict & d) {
    prior p;
    try {
        const auto accepted = d["accepted"].cast<std::vector<std::pair<float, float>>>();
        if (accepted.size() != p.accepted.size()) {
            throw std::invalid_argument(format("policy: expected %zu weights in a drafter's prior, found %zu",
                                               p.accepted.size(), accepted.size()));
        }
        for (size_t i = 0; i < accepted.size(); ++i) {
            p.accepted[i] = { accepted[i].first, accepted[i].second };
        }
        p.log_p       = d["log_p"].cast<float>();
        p.row         = d["row"].cast<float>();
        p.worth       = d["worth"].cast<float>();
        p.saved       = d["saved"].cast<float>();
        p.for_prompts = d["for_prompts"].cast<float>();
        p.for_drafts  = d["for_drafts"].cast<std::vector<float>>();
    } catch (const py::error_already_set & e) {
        throw std::invalid_argument(format("policy: not a drafter's prior: %s", e.what()));
    } catch (const py::cast_error & e) {
        throw std::invalid_argument(format("policy: not a drafter's prior: %s", e.what()));
    }
    return p;
}

std::unique_ptr<py_policy> make_policy(const std::vector<py::object> &                  drafters,
                                       const std::vector<std::shared_ptr<cost_curve>> & costs, int32_t n_max,
                                       int32_t top_k, int32_t n_leaves_max, std::optional<int32_t> n_nodes_max,
                                       int32_t n_seq_max, bool uniform, std::optional<int32_t> n_snapshots,
                                       std::shared_ptr<ngram_drafter>               ngram,
                                       const std::vector<std::optional<py::dict>> & priors) {
    if (ngram != nullptr && ngram->n_seq_max() < n_seq_max) {
        throw std::invalid_argument(format("policy: expected a NgramDrafter for %d sequences, found one for %d",
                                           n_seq_max, ngram->n_seq_max()));
    }
    planner_params params;
    params.n_max        = n_max;
    params.top_k        = top_k;
    params.n_leaves_max = n_leaves_max;
    params.n_nodes_max  = n_nodes_max.value_or(n_max);
    params.n_seq_max    = n_seq_max;
    params.uniform      = uniform;
    params.n_snapshots  = n_snapshots;
    auto made           = std::make_unique<py_policy>(drafters, costs, std::move(ngram), params);
    if (made->impl.is_measured()) {
        std::vector<std::optional<prior>> known;
        for (const std::optional<py::dict> & p : priors) {
            known.push_back(p ? std::make_optional(to_prior(*p)) : std::nullopt);
        }
        made->impl.plan().begin_with(known);
    }
    return made;
}

void observe(py_policy & self, const std::vector<llama_seq_id> & seq_ids, const std::vector<tokens_t> & tokens,
             int32_t n_rows, double t_verify_us, double t_other_us) {
    const busy_flag::scope scope(self.busy);
    if (seq_ids.size() != tokens.size()) {
        throw std::invalid_argument(
            format("policy: expected tokens for %zu sequences, found %zu", seq_ids.size(), tokens.size()));
    }
    if (!self.impl.is_measured()) {
        return;
    }
    for (size_t i = 0; i < seq_ids.size(); ++i) {
        self.impl.plan().judge(seq_ids[i], tokens[i]);
    }
    self.impl.plan().finish(n_rows, t_verify_us, t_other_us);
}

// A method of the planner, for one thread at a time.
template <typename R, typename... Args>
auto of_plan(R (planner::*method)(Args...) const) {
    return [method](py_policy & self, Args... args) {
        const busy_flag::scope scope(self.busy);
        return (self.impl.plan().*method)(args...);
    };
}

py::dict stats(py_policy & self) {
    const busy_flag::scope scope(self.busy);
    const planner &        p = self.impl.plan();
    py::dict               chosen;
    for (size_t n = 0; n < p.stats.n_chosen.size(); ++n) {
        if (p.stats.n_chosen[n] > 0) {
            chosen[py::int_(n)] = p.stats.n_chosen[n];
        }
    }
    py::dict result;
    result["steps"]             = p.stats.n_steps;
    result["drafted"]           = p.stats.n_drafted;
    result["probes"]            = p.stats.n_probes;
    result["trials"]            = p.stats.n_trials;
    result["asked"]             = p.stats.n_asked;
    result["ngram"]             = p.stats.n_ngram;
    result["grammar"]           = p.stats.n_grammar;
    result["levels"]            = p.stats.n_levels;
    result["draft_tokens"]      = chosen;
    result["draft_us"]          = p.stats.t_draft_us;
    result["planning_us"]       = p.stats.t_plan_us;
    result["tokens_per_second"] = 1e6 * p.value().price();
    result["ngram_saved_us"]    = p.stats.t_ngram_saved_us;
    result["grammar_saved_us"]  = p.stats.t_grammar_saved_us;
    std::vector<std::tuple<float, float, float>> unread;
    std::vector<double>                          saved_us;
    std::vector<bool>                            is_open;
    for (const source & source : p.sources()) {
        const auto & u = p.stats.unread_prompt[source.index];
        unread.emplace_back(u.debt, u.saved, u.account);
        saved_us.push_back(source.t_saved_us);
        is_open.push_back(p.is_worth(source.index, 1));
    }
    result["unread"]   = unread;
    result["saved_us"] = saved_us;
    result["is_open"]  = is_open;
    return result;
}

} // namespace

void register_policy(py::module_ & m) {
    py::class_<cost_curve, std::shared_ptr<cost_curve>>(m, "CostCurve", R"pbdoc(
            Microseconds of one pass over n rows: a staircase with one value per n.

            Between measured n the larger neighbour counts, above the largest one the time grows in proportion to n; for
            a mixture of experts both follow the number of experts that n rows read. `observe` refines the curve by a
            drift that all n share, a correction per n, and the time that the depth of the context adds to a pass and to
            each row.
        )pbdoc")
        .def(py::init([](const std::map<int32_t, double> & measured, std::pair<float, float> growth,
                         std::pair<int32_t, int32_t> experts) {
                 return std::make_shared<cost_curve>(measured, depth_growth{ growth.first, growth.second },
                                                     expert_count{ experts.first, experts.second });
             }),
             py::arg("measured"), py::arg("growth") = std::make_pair(0.0f, 0.0f),
             py::arg("experts") = std::make_pair(0, 0),
             R"pbdoc(
            measured: rows -> microseconds, at least one entry. growth: the attribute `growth` of an earlier curve.
            experts: of a mixture of experts, all experts and those that a row uses.

            Raises ValueError for rows outside 1..128, times that are not > 0, growth below 0, or more experts in use
            than there are.
        )pbdoc")
        .def("at", &cost_curve::at, py::arg("n"), "Return the present estimate of a pass over n rows, in microseconds.")
        .def("observe", &cost_curve::observe, py::arg("n"), py::arg("t_us"),
             "Refine the curve: a pass over n rows took t_us microseconds.")
        .def("set_depth", &cost_curve::set_depth, py::arg("n_past"),
             "Set the number of tokens before the rows of later passes, the mean over sequences.")
        .def_property_readonly(
            "growth",
            [](const cost_curve & self) { return std::make_pair(self.growth().per_pass, self.growth().per_row); },
            "Microseconds that each 1,000 tokens before a pass add to it, and to each of its rows.")
        .def_property_readonly("measured", &cost_curve::measured,
                               "The measured microseconds by rows that the curve was made from.")
        .def_property_readonly("corrected", &cost_curve::corrected,
                               "The measured microseconds by rows, reduced where passes were faster.")
        .def_property_readonly("drift", &cost_curve::drift,
                               "The factor by which all passes are slower now than measured.")
        .def("__repr__",
             [](const cost_curve & self) { return py::str("CostCurve({})").format(py::cast(self.measured())); });

    py::class_<draft_shape>(m, "DraftShape", R"pbdoc(
            The fixed shape of a draft: a tree as in EAGLE-2; a chain is a tree with top_k 1.

            depth: levels. top_k: nodes of a level that are expanded, and children of each. n_tokens: nodes that are
            kept, the most probable ones. n_min: a draft of fewer tokens is not verified. p_min: a chain ends before a
            less probable token.
        )pbdoc")
        .def(py::init([](int32_t depth, int32_t top_k, std::optional<int32_t> n_tokens, int32_t n_min, float p_min) {
                 return draft_shape{ depth, top_k, n_tokens.value_or(depth), n_min, p_min };
             }),
             py::arg("depth"), py::arg("top_k") = 1, py::arg("n_tokens") = py::none(), py::arg("n_min") = 0,
             py::arg("p_min") = 0.0f);

    py::class_<draft_request>(m, "DraftRequest", R"pbdoc(
            A sequence of a step that is drafted for.

            id_last: its last token. n_room: tokens that fit after it, into the context and the batch. n_max,
            ngram_n_max: the longest path of a drafter's tokens, and of the n-gram drafter's; 0 = it is not asked.
            drafters: the drafters that may be asked, as bits. shape: the shape of the draft; None = the one that pays
            best. n_past: tokens before id_last, on which the price of passes depends.
        )pbdoc")
        .def(py::init([](llama_seq_id seq_id, llama_token id_last, int32_t n_room, int32_t n_max, int32_t ngram_n_max,
                         int32_t drafters, const std::optional<draft_shape> & shape, int32_t n_past) {
                 return draft_request{ seq_id, id_last, n_past, n_room, n_max, ngram_n_max, drafters, shape };
             }),
             py::arg("seq_id"), py::arg("id_last"), py::arg("n_room"), py::arg("n_max") = INT32_MAX,
             py::arg("ngram_n_max") = INT32_MAX, py::arg("drafters") = -1, py::arg("shape") = py::none(),
             py::arg("n_past") = 0);

    py::class_<py_policy>(m, "Policy", R"pbdoc(
            Chooses the drafts of each step: of the shape that a sequence asks for, else the tree, chain or nothing that
            gives the most tokens per second.

            drafters: the drafters with weights; shapes are drafted by the first one. Each is a Drafter or simulates
            one, with `begin(seq_ids, ids_last, top_k, n_steps)` and `expand(nodes, top_k)`, which return the new nodes
            as tuples (parent, token, p, depth, seq_id), `n_waiting(seq_id)`, and the attributes `n_unroll`, `n_expand`,
            `is_parallel` and `t_draft_us`, its clock. costs: the CostCurve of the target's pass over n rows, then of
            each drafter those of its first graph over n waiting rows and of a level of n nodes; all are refined while
            running. Without costs the first drafter drafts short chains.

            n_max: the longest path. top_k: candidates after each node, 1 = chains only. n_leaves_max: leaves of a tree;
            all trees of a step have as many in total, not counting the first leaf of each further sequence.
            n_nodes_max: drafted tokens of a step, of all sequences in total (default: n_max). uniform: whether chains
            of sequences that share a pass have the same length. n_snapshots: rejected tokens of a chain beyond which
            the next pass evaluates all accepted ones again; None = never. ngram: an NgramDrafter of the same sequences,
            which drafts too once there are costs; its texts must be current in each step. priors: what is known of each
            drafter, as another policy's `priors` has told; None: nothing.

            One thread at a time: a second one gets BusyError.
        )pbdoc")
        .def(py::init(&make_policy), py::arg("drafters"), py::arg("costs") = std::vector<std::shared_ptr<cost_curve>>(),
             py::kw_only(), py::arg("n_max") = 16, py::arg("top_k") = 1, py::arg("n_leaves_max") = 1,
             py::arg("n_nodes_max") = py::none(), py::arg("n_seq_max") = 1, py::arg("uniform") = false,
             py::arg("n_snapshots") = py::none(), py::arg("ngram").none(true) = py::none(),
             py::arg("priors") = std::vector<std::optional<py::dict>>())
        .def(
            "priors",
            [](py_policy & self) {
                const busy_flag::scope               scope(self.busy);
                std::vector<std::optional<py::dict>> found;
                for (const std::optional<prior> & p : self.impl.plan().known()) {
                    found.push_back(p ? std::make_optional(to_dict(*p)) : std::nullopt);
                }
                return found;
            },
            R"pbdoc(
            Return what is known of each drafter, for the policy of another process; None: it was never asked.

            `accepted`: (mean, variance) of each weight of its calibration. `log_p`: mean log probability of its best
            tokens. `worth`: tokens that its steps give beyond plain ones. In tokens of plain decoding: `row`, the time
            of reading a row of a prompt; `saved`, what its drafts save in a text; `for_prompts` and `for_drafts`, by the
            number of sequences at once, what reading prompts and drafting may cost.
        )pbdoc")
        .def_property_readonly(
            "is_measured", [](const py_policy & self) { return self.impl.is_measured(); },
            "Whether costs are known. Without them `acceptance`, `can_pay`, `draft_us` and `stats` raise ValueError.")
        .def("propose", &py_policy::propose, py::arg("requests"), py::arg("n_rows_extra") = 0, R"pbdoc(
            Draft for the sequences of a step: a Draft for each request, which may be empty.

            n_rows_extra: rows of the target's next pass besides one per sequence and the drafts, such as tokens that are
            evaluated again.
        )pbdoc")
        .def("observe", &observe, py::arg("seq_ids"), py::arg("tokens"), py::arg("n_rows"), py::arg("t_verify_us"),
             py::arg("t_other_us") = 0.0, R"pbdoc(
            Learn from a step. Has to be called after each step, with or without a draft.

            tokens: the tokens that the step gave each sequence, accepted ones and the one after them. n_rows: rows of
            the pass. t_verify_us: microseconds of the pass. t_other_us: microseconds of the step that are neither
            drafting nor the pass.
        )pbdoc")
        .def(
            "reset",
            [](py_policy & self, llama_seq_id seq_id) {
                const busy_flag::scope scope(self.busy);
                if (self.impl.is_measured()) {
                    self.impl.plan().reset(seq_id);
                }
            },
            py::arg("seq_id") = 0, "Begin a new text in this sequence.")
        .def(
            "may_wait",
            [](py_policy & self, int32_t n_seqs) {
                const busy_flag::scope scope(self.busy);
                return self.impl.is_measured() ? self.impl.plan().may_wait(n_seqs) : 0;
            },
            py::arg("n_seqs"),
            "Return the drafters that need not evaluate prompts now, as bits: with n_seqs sequences at once they are "
            "not asked.")
        .def("acceptance", of_plan(&planner::accepted), py::arg("p"), py::arg("depth") = 1, py::arg("by_ngram") = false,
             py::arg("drafter") = 0,
             "Return how likely a node is accepted once its parent is, if a drafter (or the n-gram drafter) gives it "
             "probability p.")
        .def("can_pay", of_plan(&planner::can_pay), py::arg("n_seqs") = 1,
             "Whether a drafter that is always right could save time. If not, drafters are asked only in rare trials.")
        .def("draft_us", of_plan(&planner::draft_us), py::arg("n_tokens"),
             "Return the least time of drafting a chain of n_tokens with one row waiting, in microseconds.")
        .def_property_readonly(
            "costs",
            [](const py_policy & self) {
                return py::typing::Tuple<cost_curve, py::ellipsis>(py::cast(self.impl.plan().costs()));
            },
            "The CostCurves that the policy refines: the target's, then each drafter's of its first graph and of its "
            "levels.")
        .def("stats", &stats,
             R"pbdoc(
            Return figures of all steps so far.

            `steps`: all steps. `drafted`: steps that asked a drafter; `asked`: the same for each drafter; `probes`:
            those with its gate closed; `trials`: those in which none could pay. `ngram`: steps that verified tokens of
            the n-gram drafter; `grammar`: those that a grammar forces. `levels`: levels that were drafted after first graphs. `draft_tokens`: {drafted tokens
            verified: steps}. `draft_us`: microseconds of drafting. `planning_us`: microseconds of the policy itself.
            `tokens_per_second`: the present estimate.

            `unread`: for each drafter with an unread prompt in the last step, the microseconds that reading takes, that
            its drafts would have saved in this text, and that reading may cost. `saved_us`: microseconds that each
            drafter's drafts have saved beyond the others (negative: they cost time). `ngram_saved_us`: those that
            n-grams have saved in steps that asked no drafter; `grammar_saved_us`: in those with nothing but what a
            grammar forces. `is_open`: whether each drafter is asked in each step of
            a single sequence at present.
        )pbdoc");
}

} // namespace eagle3::python
