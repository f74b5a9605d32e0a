#pragma once

#include "chat.h"
#include "peg-parser.h"

#include <optional>
#include <string>
#include <vector>

namespace eagle3::chat {

// While it lives, the parsers and grammars of answers that this thread builds are those of a request with these wishes.
// llama.cpp's own allow any text before a call that is required, several calls in formats that repeat them, and in some
// formats any arguments.
class call_wishes {
  public:
    // is_forced: first in the answer is a call, after thoughts at most. is_single: it has one call. begun: text with
    // which the prompt begins the answer; a call that is required follows it. is_bare: an answer that is JSON is
    // nothing else.
    call_wishes(const std::vector<common_chat_tool> & tools, bool is_forced, bool is_single, std::string begun,
                bool is_bare);
    ~call_wishes();

    call_wishes(const call_wishes &)             = delete;
    call_wishes & operator=(const call_wishes &) = delete;

    const std::vector<common_chat_tool> & tools;
    const bool                            is_forced;
    const bool                            is_single;
    const std::string                     begun;
    const bool                            is_bare;
};

// The text before a call in the answer that a prompt begins: all of `begun` with what the parser counts to it, or what
// comes before the call that it begins. Nothing: the parser of calls cannot read it.
std::optional<std::string> text_before_call(const common_chat_params & params, const std::string & begun);

// Ends a thought of Gemma 4, which may write it at the end of an answer too.
inline constexpr char LONE_TAG[] = "<channel|>";

// The functions that cmake/LlamaChat.cmake has peg-parser.cpp call.

// Whether a grammar waits for a trigger: not if the answer must be a call.
bool is_lazy(bool lazy);

// A name for a rule that a parser does not have yet. Two tools' names may be one when only letters, digits and hyphens
// are left of them, and llama.cpp would take the second one's rule for both.
std::string new_rule_name(const common_peg_arena & parser, const std::string & name);

// A pattern of the beginning of an answer that is a call of this request's tools, where the prompt has the sign before
// it.
std::string first_call();

// Changes the parser that a builder has completed to what this thread's request wishes.
void apply_wishes(common_peg_arena & parser, common_peg_parser_builder & builder);

} // namespace eagle3::chat
