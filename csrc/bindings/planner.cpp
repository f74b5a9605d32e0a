#include "planner/planner.h"

#include "error.h"
#include "module.h"
#include "nogil.h"
#include "py_draft.h"
#include "py_drafter.h"

#include <pybind11/stl.h>

namespace eagle3::python {

namespace {

using tokens_t = std::vector<llama_token>;

// a drafter written in Python
class py_source : public draft_source {
  public:
    explicit py_source(py::object source) :
        source_(std::move(source)), is_parallel_(py::getattr(source_, "is_parallel", py::bool_(false)).cast<bool>()) {}

    void begin(const std::vector<llama_seq_id> & seq_ids, const tokens_t & ids_last, int32_t top_k,
               int32_t n_steps) override {
        nodes_.clear();
        append(source_.attr("begin")(seq_ids, ids_last, top_k, n_steps));
    }

    void expand(const std::vector<int32_t> & nodes, int32_t top_k) override {
        append(source_.attr("expand")(nodes, top_k));
    }

    const std::vector<draft_node> & nodes() const override { return nodes_; }

    bool    is_parallel() const override { return is_parallel_; }
    int32_t n_unroll() const override { return source_.attr("n_unroll").cast<int32_t>(); }
    int32_t n_expand() const override { return n_expand_max; }
    int32_t n_waiting(llama_seq_id seq_id) const override { return source_.attr("n_waiting")(seq_id).cast<int32_t>(); }

    double time_us() const override { return source_.attr("time_us")().cast<double>(); }

  private:
    static constexpr int32_t n_expand_max = 128;

    void append(const py::handle & rows) {
        for (const auto & [parent, token, p, depth, seq_id] :
             rows.cast<std::vector<std::tuple<int32_t, llama_token, float, int32_t, llama_seq_id>>>()) {
            nodes_.push_back({ parent, token, p, depth, seq_id });
        }
    }

    py::object              source_;
    bool                    is_parallel_;
    std::vector<draft_node> nodes_;
};

// a Drafter: the GIL is released while it computes
class drafter_source : public draft_source {
  public:
    explicit drafter_source(py::object drafter) : object_(std::move(drafter)), drafter_(object_.cast<py_drafter &>()) {}

    void begin(const std::vector<llama_seq_id> & seq_ids, const tokens_t & ids_last, int32_t top_k,
               int32_t n_steps) override {
        const nogil            release;
        const busy_flag::scope scope(drafter_.busy);
        drafter_.impl().begin(seq_ids, ids_last, top_k, n_steps);
    }

    void expand(const std::vector<int32_t> & nodes, int32_t top_k) override {
        const nogil            release;
        const busy_flag::scope scope(drafter_.busy);
        drafter_.impl().expand(nodes, top_k);
    }

    const std::vector<draft_node> & nodes() const override { return drafter_.impl().nodes(); }

    bool    is_parallel() const override { return drafter_.impl().is_parallel(); }
    int32_t n_unroll() const override { return drafter_.impl().n_unroll(); }
    int32_t n_expand() const override { return drafter_.impl().n_expand(); }
    int32_t n_waiting(llama_seq_id seq_id) const override { return drafter_.impl().n_waiting(seq_id); }

    double time_us() const override { return static_cast<double>(ggml_time_us()); }

  private:
    py::object   object_; // keeps it
    py_drafter & drafter_;
};

// a planner and the flag that keeps a second thread out
struct py_planner {
    py_planner(std::vector<priced_source> heads, std::shared_ptr<ngram_drafter> ngram,
               std::shared_ptr<cost_curve> target, const planner_params & params) :
        impl(std::move(heads), std::move(ngram), std::move(target), params) {}

    planner   impl;
    busy_flag busy;
};

// a drafter, and what its first graph and its levels cost
using priced_object = std::tuple<py::object, std::shared_ptr<cost_curve>, std::shared_ptr<cost_curve>>;

std::unique_ptr<py_planner> make_planner(const std::vector<priced_object> & drafters,
                                         std::shared_ptr<cost_curve> target, int32_t n_max, int32_t top_k,
                                         int32_t n_leaves_max, std::optional<int32_t> n_nodes_max, int32_t n_seq_max,
                                         bool uniform, std::optional<int32_t> n_snapshots,
                                         std::shared_ptr<ngram_drafter> ngram) {
    if (ngram != nullptr && ngram->n_seq_max() < n_seq_max) {
        throw std::invalid_argument(format("planner: expected a NgramDrafter for %d sequences, found one for %d",
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
    std::vector<priced_source> heads;
    for (const auto & [drafter, begin, step] : drafters) {
        std::unique_ptr<draft_source> source;
        if (py::isinstance<py_drafter>(drafter)) {
            source = std::make_unique<drafter_source>(drafter);
        } else {
            source = std::make_unique<py_source>(drafter);
        }
        heads.push_back({ std::move(source), begin, step });
    }
    return std::make_unique<py_planner>(std::move(heads), std::move(ngram), std::move(target), params);
}

py::object plan_to_draft(const draft_tree & plan) {
    return to_draft(plan.tokens, plan.parents, plan.probs, plan.sources);
}

py::object propose(py_planner & self, llama_token id_last, int32_t n_room, llama_seq_id seq_id, int32_t n_rows_extra) {
    const busy_flag::scope scope(self.busy);
    const int32_t          n_max = self.impl.params().n_max;
    return plan_to_draft(self.impl.propose({ { seq_id, id_last, n_room, n_max, n_max } }, n_rows_extra).front());
}

std::vector<py::object> propose_batch(py_planner & self, const std::vector<llama_seq_id> & seq_ids,
                                      const tokens_t & ids_last, const std::vector<int32_t> & n_rooms,
                                      int32_t n_rows_extra, const std::vector<int32_t> & n_max,
                                      const std::vector<int32_t> & n_max_ngram, const std::vector<draw_kind> & draws,
                                      const std::vector<int32_t> & drafters) {
    const busy_flag::scope scope(self.busy);
    const size_t           n_seqs = seq_ids.size();
    const auto             check  = [n_seqs](const char * what, size_t n, bool is_optional) {
        if (n != n_seqs && !(is_optional && n == 0)) {
            throw std::invalid_argument(format("planner: expected %s for %zu sequences, found %zu", what, n_seqs, n));
        }
    };
    check("ids_last", ids_last.size(), false);
    check("n_rooms", n_rooms.size(), false);
    check("n_max", n_max.size(), true);
    check("n_max_ngram", n_max_ngram.size(), true);
    check("draws", draws.size(), true);
    check("drafters", drafters.size(), true);
    std::vector<draft_request> requests;
    for (size_t i = 0; i < n_seqs; ++i) {
        const int32_t n = self.impl.params().n_max;
        requests.push_back({ seq_ids[i],
                             ids_last[i],
                             n_rooms[i],
                             n_max.empty() ? n : n_max[i],
                             n_max_ngram.empty() ? n : n_max_ngram[i],
                             {} });
        if (!draws.empty()) {
            requests.back().draw = draws[i];
        }
        if (!drafters.empty()) {
            requests.back().heads = drafters[i];
        }
    }
    std::vector<py::object> drafts;
    for (const draft_tree & plan : self.impl.propose(requests, n_rows_extra)) {
        drafts.push_back(plan_to_draft(plan));
    }
    return drafts;
}

void observe(py_planner & self, const tokens_t & tokens, int32_t n_rows, double t_verify_us, double t_other_us,
             llama_seq_id seq_id) {
    const busy_flag::scope scope(self.busy);
    self.impl.judge(seq_id, tokens);
    self.impl.finish(n_rows, t_verify_us, t_other_us);
}

void observe_batch(py_planner & self, const std::vector<llama_seq_id> & seq_ids, const std::vector<tokens_t> & tokens,
                   int32_t n_rows, double t_verify_us, double t_other_us) {
    const busy_flag::scope scope(self.busy);
    if (seq_ids.size() != tokens.size()) {
        throw std::invalid_argument(
            format("planner: expected tokens for %zu sequences, found %zu", seq_ids.size(), tokens.size()));
    }
    for (size_t i = 0; i < seq_ids.size(); ++i) {
        self.impl.judge(seq_ids[i], tokens[i]);
    }
    self.impl.finish(n_rows, t_verify_us, t_other_us);
}

py::dict stats(py_planner & self) {
    const busy_flag::scope scope(self.busy);
    const planner &        p = self.impl;
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
    result["levels"]            = p.stats.n_levels;
    result["draft_tokens"]      = chosen;
    result["draft_us"]          = p.stats.t_draft_us;
    result["planning_us"]       = p.stats.t_plan_us;
    result["tokens_per_second"] = 1e6 * p.value().price();
    result["is_open"]           = p.worth_asking(1);
    return result;
}

} // namespace

void register_planner(py::module_ & m) {
    py::class_<cost_curve, std::shared_ptr<cost_curve>>(m, "CostCurve", R"pbdoc(
        Microseconds of one pass over n rows: a staircase with one value per n.

        Between measured n the larger neighbour counts, above them it grows in proportion. `observe` refines it: a drift
        that all n share, and a correction per n.
    )pbdoc")
        .def(py::init<const std::map<int32_t, double> &>(), py::arg("measured"),
             "measured: rows -> microseconds, at least one. ValueError for rows outside 1..128 or times that are not "
             "> 0.")
        .def("at", &cost_curve::at, py::arg("n"), "Microseconds of n rows, as of now.")
        .def("observe", &cost_curve::observe, py::arg("n"), py::arg("t_us"), "A pass over n rows took t_us.")
        .def_property_readonly("measured", &cost_curve::measured, "what it was made from")
        .def_property_readonly("corrected", &cost_curve::corrected, "the same, less where passes were faster")
        .def_property_readonly("drift", &cost_curve::drift, "by how much everything is slower now than measured")
        .def("__repr__",
             [](const cost_curve & self) { return py::str("CostCurve({})").format(py::cast(self.measured())); });

    py::enum_<draw_kind>(m, "DrawKind", "How a text's tokens are sampled, as far as the drafter can compute it.")
        .value("GREEDY", draw_kind::greedy, "the most probable one")
        .value("KNOWN", draw_kind::known, "sampled with noise that the drafter computes too")
        .value("UNKNOWN", draw_kind::unknown, "drawn with noise that it does not know");

    py::class_<py_planner>(m, "Planner", R"pbdoc(
        Chooses what to draft, step by step, so that tokens come fastest: a tree, a chain or nothing.

        drafters: for each that may draft the drafter, and CostCurves of its first graph over n waiting rows and of a
        level of n nodes. A drafter is a Drafter, or an object with `begin(seq_ids, ids_last, top_k, n_steps)` and
        `expand(nodes, top_k)`, which return the new nodes as tuples (parent, token, p, depth, seq_id),
        `n_waiting(seq_id)`, the rows of a sequence that wait, `n_unroll`, and `time_us()`, its clock.
        target: costs of the target's pass over n rows. All are refined while running.
        n_max: longest path. top_k: candidates behind each node, 1 = chains only. n_leaves_max: leaves of a tree, or
        of all trees of a step, beside the first one of each further sequence.
        n_nodes_max: drafted tokens of one step, of all sequences together (default: n_max).
        uniform: chains of sequences that share a pass have one length. n_snapshots: if more tokens of a chain are
        rejected, the next pass evaluates all accepted ones again; None: never. ngram: a NgramDrafter for the same
        sequences, which drafts too; it must be up to date in each step.

        One thread at a time: a second one gets BusyError.
    )pbdoc")
        .def(py::init(&make_planner), py::arg("drafters"), py::arg("target"), py::kw_only(), py::arg("n_max") = 16,
             py::arg("top_k") = 1, py::arg("n_leaves_max") = 1, py::arg("n_nodes_max") = py::none(),
             py::arg("n_seq_max") = 1, py::arg("uniform") = false, py::arg("n_snapshots") = py::none(),
             py::arg("ngram").none(true) = py::none())
        .def("propose", &propose, py::arg("id_last"), py::arg("n_room"), py::arg("seq_id") = 0,
             py::arg("n_rows_extra") = 0, R"pbdoc(
            Draft what may follow id_last, as a Draft, which may be empty.

            n_room: tokens that fit behind id_last, into the context and the batch. n_rows_extra: rows of the target's
            next pass besides id_last and the draft, such as tokens that are evaluated again.
        )pbdoc")
        .def("propose_batch", &propose_batch, py::arg("seq_ids"), py::arg("ids_last"), py::arg("n_rooms"),
             py::arg("n_rows_extra") = 0, py::arg("n_max") = std::vector<int32_t>(),
             py::arg("n_max_ngram") = std::vector<int32_t>(), py::arg("draws") = std::vector<draw_kind>(),
             py::arg("drafters") = std::vector<int32_t>(),
             "The same for sequences that share one pass of the target: one Draft for each. n_max, n_max_ngram: tokens "
             "of a drafter's and of the n-gram drafter's that may follow each other, for each; else the planner's own "
             "n_max. draws: how the tokens of each are chosen, which is as it was if not given. drafters: which may be "
             "asked "
             "for each, as bits.")
        .def("observe", &observe, py::arg("tokens"), py::arg("n_rows"), py::arg("t_verify_us"),
             py::arg("t_other_us") = 0.0, py::arg("seq_id") = 0, R"pbdoc(
            After each step, those without a draft too: what was sampled, and how long its pass took.

            tokens: those that the step gave, accepted ones and the one behind them. n_rows: rows of the pass.
            t_other_us: all of the step that is neither drafting nor the pass.
        )pbdoc")
        .def("observe_batch", &observe_batch, py::arg("seq_ids"), py::arg("tokens"), py::arg("n_rows"),
             py::arg("t_verify_us"), py::arg("t_other_us") = 0.0, "The same for several sequences.")
        .def(
            "reset",
            [](py_planner & self, llama_seq_id seq_id) {
                const busy_flag::scope scope(self.busy);
                self.impl.reset(seq_id);
            },
            py::arg("seq_id") = 0, "A new text begins in this sequence.")
        .def(
            "may_wait",
            [](py_planner & self, llama_seq_id seq_id, int32_t n_seqs) {
                const busy_flag::scope scope(self.busy);
                return self.impl.may_wait(seq_id, n_seqs);
            },
            py::arg("seq_id"), py::arg("n_seqs"),
            "Drafters that need not evaluate a sequence's prompt now, as bits: with n_seqs at once they are not asked.")
        .def(
            "acceptance",
            [](py_planner & self, float p, int32_t depth, llama_seq_id seq_id, bool by_ngram, size_t drafter) {
                const busy_flag::scope scope(self.busy);
                return self.impl.accepted(p, depth, seq_id, by_ngram, drafter);
            },
            py::arg("p"), py::arg("depth") = 1, py::arg("seq_id") = 0, py::arg("by_ngram") = false,
            py::arg("drafter") = 0,
            "How likely a node is accepted once its parent is, if a drafter (or the n-gram drafter) gives it p.")
        .def(
            "can_pay",
            [](py_planner & self, int32_t n_seqs) {
                const busy_flag::scope scope(self.busy);
                return self.impl.can_pay(n_seqs);
            },
            py::arg("n_seqs") = 1,
            "Whether one that is always right could save time. If not, one is asked in a trial now and then alone.")
        .def(
            "draft_us",
            [](py_planner & self, int32_t n_tokens) {
                const busy_flag::scope scope(self.busy);
                return self.impl.draft_us(n_tokens);
            },
            py::arg("n_tokens"),
            "Microseconds that drafting a chain of so many tokens takes at least, with one row waiting.")
        .def_property_readonly(
            "costs", [](const py_planner & self) { return py::tuple(py::cast(self.impl.costs())); },
            "The CostCurves that it refines: of the target, then of each drafter's first graph and of its levels.")
        .def("stats", &stats, R"pbdoc(
            What happened so far: `steps`, of which `drafted` asked a drafter, `asked` each of them, `probes` of them
            although its gate was closed, `trials` although none could pay; `ngram`, steps that verified something of
            the n-gram drafter's; `levels` that were drafted behind first graphs; `draft_tokens`, {drafted tokens verified: steps};
            `draft_us`; `planning_us`, own time; `tokens_per_second`, the current estimate; `is_open`, whether
            a gate for one sequence is.
        )pbdoc");
}

} // namespace eagle3::python
