#pragma once

#include "chat.h"
#include "peg-parser.h"

namespace eagle3::chat {

// In formats that write each argument apart, holds the arguments of tools to what llama.cpp's parsers leave open: the
// required ones, and schemas of values.
void hold_arguments(common_peg_arena & parser, common_peg_parser_builder & builder,
                    const std::vector<common_chat_tool> & tools);

} // namespace eagle3::chat
