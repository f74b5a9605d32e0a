#include "reasoning_budget.h"

#include "module.h"

#include <pybind11/stl.h>

#include <cmath>

namespace eagle3::chat {

namespace {

// Limits the reasoning, and hides it from a lazy grammar. llama.cpp's common_sampler does this outside of its chain;
// this is a sampler of a chain.
struct reasoning_context {
    reasoning_budget budget;
    llama_sampler *  grammar; // or null
    bool             lazy;

    ~reasoning_context() { llama_sampler_free(grammar); }

    bool grammar_applies() const { return grammar && (!lazy || !budget.is_open()); }
};

reasoning_context & context_of(const llama_sampler * smpl) {
    return *static_cast<reasoning_context *>(smpl->ctx);
}

void accept(llama_sampler * smpl, llama_token token) {
    reasoning_context & ctx     = context_of(smpl);
    const bool          applied = ctx.grammar_applies(); // before the state changes
    ctx.budget.accept(token);
    if (applied) {
        llama_sampler_accept(ctx.grammar, token);
    } else if (ctx.grammar_applies()) {
        // the end of the reasoning may be the beginning of the grammar's trigger
        for (const llama_token end_token : ctx.budget.end()) {
            llama_sampler_accept(ctx.grammar, end_token);
        }
    }
}

void apply_budget(llama_sampler * smpl, llama_token_data_array * cur_p) {
    const llama_token forced = context_of(smpl).budget.forced();
    for (size_t i = 0; forced != LLAMA_TOKEN_NULL && i < cur_p->size; ++i) {
        if (cur_p->data[i].id != forced) {
            cur_p->data[i].logit = -INFINITY;
        }
    }
}

void apply(llama_sampler * smpl, llama_token_data_array * cur_p) {
    apply_budget(smpl, cur_p);
    if (context_of(smpl).grammar_applies()) {
        llama_sampler_apply(context_of(smpl).grammar, cur_p);
    }
}

void reset(llama_sampler * smpl) {
    context_of(smpl).budget.reset();
    llama_sampler_reset(context_of(smpl).grammar);
}

llama_sampler * make(const reasoning_budget & budget, llama_sampler * grammar, bool lazy);

llama_sampler * clone(const llama_sampler * smpl) {
    const reasoning_context & ctx = context_of(smpl);
    return make(ctx.budget, llama_sampler_clone(ctx.grammar), ctx.lazy);
}

llama_sampler_i make_interface() {
    llama_sampler_i iface = {};
    iface.name            = [](const llama_sampler *) {
        return "reasoning";
    };
    iface.accept = accept;
    iface.apply  = apply;
    iface.reset  = reset;
    iface.clone  = clone;
    iface.free   = [](llama_sampler * smpl) {
        delete &context_of(smpl);
    };
    return iface;
}

llama_sampler * make(const reasoning_budget & budget, llama_sampler * grammar, bool lazy) {
    static llama_sampler_i iface = make_interface();
    return llama_sampler_init(&iface, new reasoning_context{ budget, grammar, lazy });
}

// A sampler of the budget alone, which forces tokens before anything is drawn. The reasoning sampler accepts tokens for
// it, and must outlive it.
llama_sampler * make_budget(llama_sampler * reasoning) {
    static llama_sampler_i iface = [] {
        llama_sampler_i i = {};
        i.name            = [](const llama_sampler *) {
            return "reasoning-budget";
        };
        i.apply = apply_budget;
        return i;
    }();
    return llama_sampler_init(&iface, reasoning->ctx);
}

} // namespace

void register_sampler(py::module_ & m) {
    m.def(
        "reasoning_sampler",
        [](uintptr_t vocab, uintptr_t grammar, bool lazy, const llama_tokens & start,
           const std::vector<llama_tokens> & ends, const llama_tokens & forced, int32_t budget,
           const llama_tokens & prefill) {
            reasoning_budget made(reinterpret_cast<const llama_vocab *>(vocab), start, ends, forced, budget);
            made.accept_prompt(prefill);
            return reinterpret_cast<uintptr_t>(make(made, reinterpret_cast<llama_sampler *>(grammar), lazy));
        },
        py::arg("vocab"), py::arg("grammar"), py::arg("lazy"), py::arg("start"), py::arg("ends"), py::arg("forced"),
        py::arg("budget"), py::arg("prefill"),
        "Address of a new llama_sampler, which owns the one at `grammar` (or 0).");
    m.def(
        "reasoning_budget_sampler",
        [](uintptr_t reasoning) {
            return reinterpret_cast<uintptr_t>(make_budget(reinterpret_cast<llama_sampler *>(reasoning)));
        },
        py::arg("reasoning"),
        "Address of a new llama_sampler that applies the budget of a reasoning_sampler, which must outlive it.");
}

} // namespace eagle3::chat
