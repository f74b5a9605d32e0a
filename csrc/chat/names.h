#pragma once

#include "chat-peg-parser.h"
#include "chat.h"

#include <set>
#include <string>
#include <vector>

namespace eagle3::chat {

// Names of tools and of their parameters in calls: a format may write them as JSON or XML has them, or leave out blanks
// around them. A client gets back its own, for which the parser has this tag around each way to write it.

// Adds these ways to a parser's names. Those of keys, of arguments that are no JSON, are literals before what else a
// key may be.
void add_ways_to_write(common_peg_arena & parser, common_peg_parser_builder & builder,
                       const std::set<std::string> & keys);

// Tools' names of parameters, at any depth, that Gemma 4's arguments could not have: a colon ends a key there, and
// blanks before it are left out.
std::set<std::string> odd_keys(const std::vector<common_chat_tool> & tools);

// The functions that cmake/LlamaChat.cmake has chat-peg-parser.cpp call.

// The nodes in which `given_name` looks until the next call, on this thread.
const common_peg_ast_arena & names_in(const common_peg_ast_arena & nodes);

// The client's name that a node stands for; `text` if it has no such tag.
std::string given_name(const common_peg_ast_node & node, std::string text);

// JSON in which control characters within texts are escaped: a model may write line breaks there.
std::string with_escapes(const std::string & json);

} // namespace eagle3::chat
