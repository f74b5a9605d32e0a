#pragma once

#include "chat.h"

namespace eagle3::chat {

// Gives the answers to a prompt, whose template knows no tools, a form for calls: <tool_call>JSON</tool_call>. begun:
// the text with which the prompt begins the answer.
void frame_calls(common_chat_params & params, const std::string & begun, bool is_forced,
                 common_reasoning_format reasoning_format, const std::vector<common_chat_tool> & tools);

} // namespace eagle3::chat
