#include "grammar/sampler.h"

#include "error.h"
#include "grammar/budget.h"
#include "grammar/check.h"
#include "grammar/parse_error.h"
#include "grammar/pieces.h"
#include "llama-grammar.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <memory>
#include <new>
#include <stdexcept>

namespace eagle3 {

static thread_local std::string parse_error;

void keep_parse_error(const char * fmt, ...) {
    char    text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    parse_error = text;
}

// The message without its frame: "parse: error parsing grammar: %s\n\n%s\n".
std::string take_parse_error() {
    std::string  text  = std::move(parse_error);
    const size_t start = text.find("grammar: ");
    parse_error.clear();
    return start == std::string::npos ? "" : text.substr(start + 9, text.find("\n\n") - start - 9);
}

namespace {

struct free_grammar {
    void operator()(llama_grammar * grammar) const { llama_grammar_free_impl(grammar); }
};

using grammar_ptr = std::unique_ptr<llama_grammar, free_grammar>;

// What a grammar remembers of a text.
struct grammar_state {
    llama_grammar_stacks                  stacks;
    llama_partial_utf8                    partial_utf8     = {};
    bool                                  awaiting_trigger = false;
    std::string                           trigger_buffer;
    std::vector<llama_grammar::token_pos> trigger_buffer_positions;
};

void swap(llama_grammar & grammar, grammar_state & state) {
    std::swap(grammar.stacks, state.stacks);
    std::swap(grammar.partial_utf8, state.partial_utf8);
    std::swap(grammar.awaiting_trigger, state.awaiting_trigger);
    std::swap(grammar.trigger_buffer, state.trigger_buffer);
    std::swap(grammar.trigger_buffer_positions, state.trigger_buffer_positions);
}

// Stacks point into the rules. Clones share the rules, since llama.cpp's own clone searches all rules for every element
// of every stack. So all clones belong to one thread.
struct grammar_context {
    std::shared_ptr<llama_grammar>           grammar; // in its initial state
    std::shared_ptr<const grammar_state>     start;   // the state to reset to
    std::shared_ptr<grammar_pieces>          pieces;
    std::shared_ptr<grammar_budget::account> spent;      // by the text; what drafts ask, of clones too, is not charged
    size_t                                   n_best = 0; // the next sampler reads only so many of the best; 0: all
    grammar_state                            now;
};

// The grammar in a state, which it changes.
class grammar_in {
  public:
    explicit grammar_in(grammar_context & ctx) : ctx_(ctx) { swap(*ctx_.grammar, ctx_.now); }

    grammar_in(const grammar_in &)             = delete;
    grammar_in & operator=(const grammar_in &) = delete;

    ~grammar_in() { swap(*ctx_.grammar, ctx_.now); }

    llama_grammar & operator*() const { return *ctx_.grammar; }

  private:
    grammar_context & ctx_;
};

grammar_context & context_of(const llama_sampler * smpl) {
    return *static_cast<grammar_context *>(smpl->ctx);
}

llama_sampler * make(grammar_context ctx);

bool is_refused(const llama_token_data & candidate) {
    return candidate.logit == -INFINITY;
}

bool has_candidates(const llama_token_data_array * cur_p) {
    return std::any_of(cur_p->data, cur_p->data + cur_p->size,
                       [](const llama_token_data & candidate) { return !is_refused(candidate); });
}

// Leaves at least n_best of the candidates that the grammar allows, the best ones, in order. It is asked about the best
// ones first, since inside of a string nearly all are allowed. Returns false if fewer than n_best of these are.
bool leave_best(const llama_grammar & grammar, llama_token_data_array * cur_p, size_t n_best) {
    const size_t n_asked = std::min(cur_p->size, 4 * n_best + 60);
    std::partial_sort(cur_p->data, cur_p->data + n_asked, cur_p->data + cur_p->size,
                      [](const llama_token_data & a, const llama_token_data & b) {
                          return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
                      });
    llama_token_data_array best = { cur_p->data, n_asked, /*.selected =*/-1, /*.sorted =*/true };
    llama_grammar_apply_impl(grammar, &best);
    const auto n_refused = static_cast<size_t>(std::count_if(best.data, best.data + n_asked, is_refused));
    if (n_asked - n_refused < n_best) {
        return false;
    }
    std::remove_if(best.data, best.data + n_asked, is_refused);
    cur_p->size   = n_asked - n_refused;
    cur_p->sorted = true;
    return true;
}

void apply(llama_sampler * smpl, llama_token_data_array * cur_p) {
    grammar_context &     ctx = context_of(smpl);
    const grammar_in      in(ctx);
    const llama_grammar & grammar = *in;
    if (grammar.awaiting_trigger) {
        return;
    }
    const grammar_budget::scope scope(*ctx.spent, 0);
    // a caller that passes only some of the tokens asks about these, and chooses none
    if (cur_p->size < static_cast<size_t>(llama_vocab_n_tokens(grammar.vocab))) {
        llama_grammar_apply_impl(grammar, cur_p);
        return;
    }
    const bool had_some = has_candidates(cur_p);
    if (ctx.n_best > 0 && leave_best(grammar, cur_p, ctx.n_best)) {
        return;
    }
    if (grammar.partial_utf8.n_remain == 0) {
        ctx.pieces->apply(grammar, cur_p);
    } else {
        llama_grammar_apply_impl(grammar, cur_p);
    }
    if (had_some && !has_candidates(cur_p)) {
        throw std::invalid_argument(
            "the grammar allows no token here: it wants characters that there are not, or that no token of the "
            "vocabulary begins with");
    }
}

llama_sampler_i make_interface() {
    llama_sampler_i iface = {};
    iface.name            = [](const llama_sampler *) {
        return "grammar";
    };
    iface.accept = [](llama_sampler * smpl, llama_token token) {
        const grammar_budget::scope scope(*context_of(smpl).spent, 1);
        const grammar_in            grammar(context_of(smpl));
        try {
            llama_grammar_accept_impl(*grammar, token);
        } catch (const std::runtime_error & e) {
            throw error(e.what());
        }
    };
    iface.apply = apply;
    iface.reset = [](llama_sampler * smpl) {
        context_of(smpl).now    = *context_of(smpl).start;
        *context_of(smpl).spent = {};
    };
    iface.clone = [](const llama_sampler * smpl) {
        return make(context_of(smpl));
    };
    iface.free = [](llama_sampler * smpl) {
        delete &context_of(smpl);
    };
    return iface;
}

llama_sampler * make(grammar_context ctx) {
    static llama_sampler_i iface = make_interface();
    return llama_sampler_init(&iface, new grammar_context(std::move(ctx)));
}

} // namespace

llama_sampler * grammar_sampler_init(const llama_vocab * vocab, const std::string & grammar, const std::string & root,
                                     bool lazy, const std::vector<std::string> & trigger_patterns,
                                     const std::vector<llama_token> & trigger_tokens, size_t n_best) {
    check_grammar(grammar);
    std::vector<const char *> patterns;
    for (const std::string & pattern : trigger_patterns) {
        patterns.push_back(pattern.c_str());
    }
    const grammar_budget::scope scope;
    grammar_ptr                 made;
    try {
        made.reset(llama_grammar_init_impl(vocab, grammar.c_str(), root.c_str(), lazy, patterns.data(), patterns.size(),
                                           trigger_tokens.data(), trigger_tokens.size()));
    } catch (const std::regex_error & e) {
        throw std::invalid_argument(std::string("a trigger of the grammar is no regular expression: ") + e.what());
    } catch (const std::bad_alloc &) {
        throw; // the grammar is not the reason
    } catch (const std::exception & e) {
        throw std::invalid_argument(std::string("llama.cpp refuses the grammar: ") + e.what());
    }
    const std::string why = take_parse_error();
    if (!made) {
        throw std::invalid_argument("llama.cpp cannot parse the grammar: " +
                                    (why.empty() ? "it has no rule named " + root : why));
    }
    grammar_context ctx{
        std::move(made), nullptr, std::make_shared<grammar_pieces>(*vocab), std::make_shared<grammar_budget::account>(),
        n_best,          {}
    };
    swap(*ctx.grammar, ctx.now);
    ctx.start = std::make_shared<const grammar_state>(ctx.now);
    return make(std::move(ctx));
}

bool grammar_is_waiting(const llama_sampler * smpl) {
    return context_of(smpl).now.awaiting_trigger;
}

void with_grammar(const llama_sampler * smpl, const std::function<void(llama_grammar &)> & work) {
    grammar_context  copy = context_of(smpl);
    const grammar_in in(copy);
    work(*in);
}

} // namespace eagle3
