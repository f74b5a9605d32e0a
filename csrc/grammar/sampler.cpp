#include "grammar/sampler.h"

#include "error.h"
#include "grammar/automaton.h"
#include "grammar/budget.h"
#include "grammar/check.h"
#include "grammar/llama_grammar.h"
#include "grammar/parse_error.h"
#include "grammar/pieces.h"
#include "llama-grammar.h"
#include "llama-vocab.h"

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

// What a grammar remembers of a text.
struct grammar_text {
    std::shared_ptr<grammar_automaton::state> at;

    llama_partial_utf8                    partial_utf8     = {};
    bool                                  awaiting_trigger = false;
    std::string                           trigger_buffer;
    std::vector<llama_grammar::token_pos> trigger_buffer_positions;
};

// Stacks point into the rules. Clones share the rules, since llama.cpp's own clone searches all rules for every element
// of every stack. So all clones belong to one thread.
struct grammar_context {
    std::shared_ptr<grammar_automaton>       automaton;
    std::shared_ptr<const grammar_text>      start; // to reset to
    std::shared_ptr<const token_tree>        tokens;
    std::shared_ptr<grammar_budget::account> spent;      // by the text; what drafts ask, of clones too, is not charged
    size_t                                   n_best = 0; // the next sampler reads only so many of the best; 0: all
    grammar_text                             now;
};

void swap(llama_grammar & grammar, grammar_text & text) {
    std::swap(grammar.partial_utf8, text.partial_utf8);
    std::swap(grammar.awaiting_trigger, text.awaiting_trigger);
    std::swap(grammar.trigger_buffer, text.trigger_buffer);
    std::swap(grammar.trigger_buffer_positions, text.trigger_buffer_positions);
}

// llama.cpp's grammar after a text. It may change all but the text's state.
class grammar_after {
  public:
    explicit grammar_after(grammar_context & ctx) : grammar_(ctx.automaton->grammar()), text_(ctx.now) {
        grammar_.stacks = text_.at->stacks();
        swap(grammar_, text_);
    }

    grammar_after(const grammar_after &)             = delete;
    grammar_after & operator=(const grammar_after &) = delete;

    ~grammar_after() { swap(grammar_, text_); }

    llama_grammar & operator*() const { return grammar_; }

  private:
    llama_grammar & grammar_;
    grammar_text &  text_;
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

// Is a token nothing but its characters, of a text that ends with a whole one?
bool reads_characters(const grammar_context & ctx) {
    return ctx.now.partial_utf8.n_remain == 0 && !ctx.automaton->names_tokens();
}

// As llama_grammar_apply_impl says it, if a token is nothing but its characters.
bool allows(grammar_context & ctx, llama_token token) {
    const llama_vocab & vocab = ctx.tokens->vocab();
    if (vocab.is_eog(token)) {
        return ctx.now.at->may_end();
    }
    const std::string & text = vocab.token_to_piece(token);
    if (text.empty() || text[0] == 0) {
        return false;
    }
    const auto [characters, end]     = decode_piece(text, {});
    grammar_automaton::state * state = ctx.now.at.get();
    for (size_t i = 0; state != nullptr && characters[i] != 0; ++i) {
        state = ctx.automaton->after(*state, characters[i]);
    }
    return state != nullptr && (end.n_remain == 0 || state->allows(end));
}

// Whether each token of the vocabulary is allowed. None: the grammar has too many states for that.
std::vector<char> allowed_tokens(grammar_context & ctx) {
    const std::vector<token_tree::node> & nodes  = ctx.tokens->nodes();
    const std::vector<llama_token> &      tokens = ctx.tokens->tokens();
    const llama_vocab &                   vocab  = ctx.tokens->vocab();
    std::vector<char>                     result(vocab.n_tokens(), 0);

    struct beginning {
        uint32_t                   end;
        grammar_automaton::state * state;
    };

    std::vector<beginning> path = { { nodes[0].end, ctx.now.at.get() } };
    const auto             read = [&](size_t i, uint32_t n_end, const grammar_automaton::state & state) {
        for (; i < n_end; ++i) {
            const auto [value, n_remain]           = ctx.tokens->ends()[i];
            result[static_cast<size_t>(tokens[i])] = n_remain == 0 || state.allows({ value, n_remain });
        }
    };
    read(0, nodes[1].first, *path.back().state);
    for (uint32_t i = 1; i < nodes[0].end;) {
        while (i >= path.back().end) {
            path.pop_back();
        }
        const token_tree::node &   node  = nodes[i];
        grammar_automaton::state * state = ctx.automaton->after(*path.back().state, node.c);
        if (ctx.automaton->is_overfull()) {
            return {};
        }
        if (state == nullptr || (node.is_plain && ctx.automaton->loops(*state))) {
            if (state != nullptr) {
                read(node.first, nodes[node.end].first, *state);
            }
            i = node.end;
            continue;
        }
        read(node.first, nodes[i + 1].first, *state);
        path.push_back({ node.end, state });
        ++i;
    }
    for (const llama_token token : ctx.tokens->ends_texts()) {
        result[static_cast<size_t>(token)] = ctx.now.at->may_end();
    }
    return result;
}

// Whether a byte may follow the first one of a character. llama.cpp also takes characters in more bytes than they need,
// halves of surrogate pairs and numbers beyond Unicode: these are no UTF-8, and the text would be without them.
bool may_follow(const llama_partial_utf8 & first, uint8_t byte) {
    const uint32_t value = first.value;
    switch (first.n_remain) {
        case 2: return value == 0 ? byte >= 0xa0 : value != 0xd || byte < 0xa0;
        case 3: return value == 0 ? byte >= 0x90 : value < 4 || (value == 4 && byte < 0x90);
        default: return true;
    }
}

// Lowers the logits of what the grammar refuses.
void refuse(grammar_context & ctx, llama_token_data_array * cur_p) {
    const bool is_all = cur_p->size >= ctx.tokens->vocab().n_tokens();
    if (reads_characters(ctx)) {
        const std::vector<char> allowed = is_all ? allowed_tokens(ctx) : std::vector<char>();
        if (!is_all || !allowed.empty()) {
            for (size_t i = 0; i < cur_p->size; ++i) {
                llama_token_data & candidate = cur_p->data[i];
                if (!(is_all ? allowed.at(static_cast<size_t>(candidate.id)) != 0 : allows(ctx, candidate.id))) {
                    candidate.logit = -INFINITY;
                }
            }
            return;
        }
    }
    llama_grammar_apply_impl(*grammar_after(ctx), cur_p);
    for (size_t i = 0; ctx.now.partial_utf8.n_remain > 1 && i < cur_p->size; ++i) {
        const std::string & text = ctx.tokens->vocab().token_to_piece(cur_p->data[i].id);
        if (!text.empty() && !may_follow(ctx.now.partial_utf8, static_cast<uint8_t>(text[0]))) {
            cur_p->data[i].logit = -INFINITY;
        }
    }
}

// Leaves at least n_best of the candidates that the grammar allows, the best ones, in order. It is asked about the best
// ones first, since inside of a string nearly all are allowed. Returns false if fewer than n_best of these are.
bool leave_best(grammar_context & ctx, llama_token_data_array * cur_p, size_t n_best) {
    const size_t n_asked = std::min(cur_p->size, 4 * n_best + 60);
    std::partial_sort(cur_p->data, cur_p->data + n_asked, cur_p->data + cur_p->size,
                      [](const llama_token_data & a, const llama_token_data & b) {
                          return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
                      });
    llama_token_data_array best = { cur_p->data, n_asked, /*.selected =*/-1, /*.sorted =*/true };
    refuse(ctx, &best);
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
    grammar_context & ctx = context_of(smpl);
    if (ctx.now.awaiting_trigger) {
        return;
    }
    const grammar_budget::scope scope(*ctx.spent, 0);
    // a caller that passes only some of the tokens asks about these, and chooses none
    if (cur_p->size < ctx.tokens->vocab().n_tokens()) {
        refuse(ctx, cur_p);
        return;
    }
    const bool had_some = has_candidates(cur_p);
    if (ctx.n_best > 0 && leave_best(ctx, cur_p, ctx.n_best)) {
        return;
    }
    refuse(ctx, cur_p);
    if (had_some && !has_candidates(cur_p)) {
        throw std::invalid_argument(
            "the grammar allows no token here: it wants characters that there are not, or that no token of the "
            "vocabulary begins with");
    }
}

// As llama_grammar_accept_impl does it, along known states. False if only that can.
bool accept_characters(grammar_context & ctx, llama_token token) {
    const llama_vocab & vocab = ctx.tokens->vocab();
    if (ctx.now.awaiting_trigger || ctx.automaton->names_tokens() || vocab.is_eog(token)) {
        return false;
    }
    const auto [characters, end]     = decode_piece(vocab.token_to_piece(token), ctx.now.partial_utf8);
    grammar_automaton::state * state = ctx.now.at.get();
    for (size_t i = 0; state != nullptr && i + 1 < characters.size(); ++i) {
        state = ctx.automaton->after(*state, characters[i]);
    }
    if (state == nullptr || characters.size() < 2) {
        return false;
    }
    ctx.now.at           = state->shared_from_this();
    ctx.now.partial_utf8 = end;
    return true;
}

void accept(llama_sampler * smpl, llama_token token) {
    grammar_context &           ctx = context_of(smpl);
    const grammar_budget::scope scope(*ctx.spent, 1);
    ctx.automaton->forget_some();
    if (accept_characters(ctx, token)) {
        return;
    }
    try {
        const grammar_after grammar(ctx);
        llama_grammar_accept_impl(*grammar, token);
    } catch (const std::runtime_error & e) {
        throw error(e.what());
    }
    ctx.now.at = ctx.automaton->find(ctx.automaton->grammar().stacks);
}

llama_sampler_i make_interface() {
    llama_sampler_i iface = {};
    iface.name            = [](const llama_sampler *) {
        return "grammar";
    };
    iface.accept = accept;
    iface.apply  = apply;
    iface.reset  = [](llama_sampler * smpl) {
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

llama_sampler * grammar_sampler_init(std::shared_ptr<const token_tree> tokens, const std::string & grammar,
                                     const std::string & root, bool lazy,
                                     const std::vector<std::string> & trigger_patterns,
                                     const std::vector<llama_token> & trigger_tokens, size_t n_best) {
    check_grammar(grammar);
    std::vector<const char *> patterns;
    for (const std::string & pattern : trigger_patterns) {
        patterns.push_back(pattern.c_str());
    }
    const grammar_budget::scope scope;
    grammar_ptr                 made;
    try {
        made.reset(llama_grammar_init_impl(&tokens->vocab(), grammar.c_str(), root.c_str(), lazy, patterns.data(),
                                           patterns.size(), trigger_tokens.data(), trigger_tokens.size()));
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
    grammar_context ctx;
    ctx.automaton = std::make_shared<grammar_automaton>(std::move(made));
    ctx.tokens    = std::move(tokens);
    ctx.spent     = std::make_shared<grammar_budget::account>();
    ctx.n_best    = n_best;
    ctx.now.at    = ctx.automaton->find(ctx.automaton->grammar().stacks);
    swap(ctx.automaton->grammar(), ctx.now);
    ctx.start = std::make_shared<const grammar_text>(ctx.now);
    return make(std::move(ctx));
}

bool grammar_is_waiting(const llama_sampler * smpl) {
    return context_of(smpl).now.awaiting_trigger;
}

grammar_place grammar_place_of(const llama_sampler * smpl) {
    grammar_context & ctx = context_of(smpl);
    return { *ctx.automaton, *ctx.now.at, ctx.now.partial_utf8.n_remain == 0 };
}

} // namespace eagle3
