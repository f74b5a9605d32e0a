#include "grammar/sampler.h"

#include "error.h"
#include "grammar/budget.h"
#include "grammar/check.h"
#include "grammar/parse_error.h"
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

// its form is "parse: error parsing grammar: %s\n\n%s\n"
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

struct grammar_context {
    grammar_ptr grammar;
    grammar_ptr start; // to be reset to
};

grammar_context & context_of(const llama_sampler * smpl) {
    return *static_cast<grammar_context *>(smpl->ctx);
}

llama_sampler * make(grammar_ptr grammar, grammar_ptr start);

bool has_candidates(const llama_token_data_array * cur_p) {
    return std::any_of(cur_p->data, cur_p->data + cur_p->size,
                       [](const llama_token_data & candidate) { return candidate.logit != -INFINITY; });
}

void apply(llama_sampler * smpl, llama_token_data_array * cur_p) {
    const grammar_budget::scope scope;
    const bool                  had_some = has_candidates(cur_p);
    llama_grammar_apply_impl(*context_of(smpl).grammar, cur_p);
    // one candidate is a question, and not a choice
    if (cur_p->size > 1 && had_some && !has_candidates(cur_p)) {
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
        const grammar_budget::scope scope;
        try {
            llama_grammar_accept_impl(*context_of(smpl).grammar, token);
        } catch (const std::runtime_error & e) {
            throw error(e.what());
        }
    };
    iface.apply = apply;
    iface.reset = [](llama_sampler * smpl) {
        grammar_context & ctx = context_of(smpl);
        ctx.grammar.reset(llama_grammar_clone_impl(*ctx.start));
    };
    iface.clone = [](const llama_sampler * smpl) {
        const grammar_context & ctx = context_of(smpl);
        return make(grammar_ptr(llama_grammar_clone_impl(*ctx.grammar)),
                    grammar_ptr(llama_grammar_clone_impl(*ctx.start)));
    };
    iface.free = [](llama_sampler * smpl) {
        delete &context_of(smpl);
    };
    return iface;
}

llama_sampler * make(grammar_ptr grammar, grammar_ptr start) {
    static llama_sampler_i iface = make_interface();
    return llama_sampler_init(&iface, new grammar_context{ std::move(grammar), std::move(start) });
}

} // namespace

llama_sampler * grammar_sampler_init(const llama_vocab * vocab, const std::string & grammar, const std::string & root,
                                     bool lazy, const std::vector<std::string> & trigger_patterns,
                                     const std::vector<llama_token> & trigger_tokens) {
    check_grammar(grammar);
    std::vector<const char *> patterns;
    for (const std::string & pattern : trigger_patterns) {
        patterns.push_back(pattern.c_str());
    }
    const grammar_budget::scope scope;
    grammar_ptr                 start;
    try {
        start.reset(llama_grammar_init_impl(vocab, grammar.c_str(), root.c_str(), lazy, patterns.data(),
                                            patterns.size(), trigger_tokens.data(), trigger_tokens.size()));
    } catch (const std::regex_error & e) {
        throw std::invalid_argument(std::string("a trigger of the grammar is no regular expression: ") + e.what());
    } catch (const std::bad_alloc &) {
        throw; // it is not the grammar
    } catch (const std::exception & e) {
        throw std::invalid_argument(std::string("llama.cpp refuses the grammar: ") + e.what());
    }
    const std::string why = take_parse_error();
    if (!start) {
        throw std::invalid_argument("llama.cpp cannot parse the grammar: " +
                                    (why.empty() ? "it has no rule named " + root : why));
    }
    grammar_ptr now(llama_grammar_clone_impl(*start));
    return make(std::move(now), std::move(start));
}

} // namespace eagle3
