#pragma once

#include "chat.h"

namespace eagle3::chat {

// Gives the answers to a prompt, whose template knows no tools, a form for calls: <tool_call>JSON</tool_call>.
void frame_calls(common_chat_params & params, const common_chat_templates_inputs & inputs,
                 const std::vector<common_chat_tool> & tools);

} // namespace eagle3::chat
