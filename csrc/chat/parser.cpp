#include "big_stack.h"
#include "busy_flag.h"
#include "calls.h"
#include "chat.h"
#include "module.h"
#include "nesting.h"
#include "parts.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <utility>

namespace eagle3::chat {

namespace {

constexpr char   BLANK[] = " \t\r\n";
constexpr size_t TAG_MAX = 32; // characters of a tag, at most

std::string random_id() {
    static const char  chars[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    std::random_device device;
    std::string        id(32, ' ');
    for (char & c : id) {
        c = chars[std::uniform_int_distribution<size_t>(0, sizeof(chars) - 2)(device)];
    }
    return id;
}

// Characters of a message's content before the text that the prompt begins, whose end the parser may leave out: blanks,
// and what may begin a tag. npos: the content does not end with that text.
size_t n_before(const std::string & content, const std::string & begun) {
    const size_t n_text = begun.find_last_not_of(BLANK) + 1;
    for (size_t n = begun.size(); n > n_text - std::min(n_text, TAG_MAX); n--) {
        if (content.size() >= n && content.compare(content.size() - n, n, begun, 0, n) == 0) {
            return content.size() - n;
        }
    }
    return std::string::npos;
}

// Parses an answer as it comes: what llama-server's task_result_state does.
class parser {
  public:
    // begun: the end of the prompt with which the reported answer begins; its message is new to its reader.
    parser(int format, const std::string & generation_prompt, const std::string & source, bool is_continuation,
           const std::string & begun) {
        params.format            = static_cast<common_chat_format>(format);
        params.generation_prompt = generation_prompt;
        n_begun                  = begun.size();
        if (!source.empty()) {
            params.parser.load(source);
        }
        if (is_continuation || !begun.empty()) {
            try {
                message = common_chat_parse("", true, params); // the text that the prompt has already is not reported
            } catch (const std::runtime_error &) {             // a format that has no such text: nor the answer's
            }
            message.tool_calls.clear(); // a call that it begins is reported: nobody else would know its name
            const size_t n = n_before(message.content, begun);
            if (!is_continuation) { // all is reported, but no tags that llama.cpp adds to a begun text
                message.content = n == std::string::npos ? "" : message.content.substr(0, n);
                message.reasoning_content.clear();
            } else if (n != std::string::npos) {
                message.content.replace(n, std::string::npos, begun);
            }
        }
    }

    // Throws if the text does not have the format.
    common_chat_msg parse(const std::string & text, bool is_partial) const {
        const size_t nesting = text_nesting(text);
        if (nesting > MAX_NESTING) {
            throw std::runtime_error("the answer is nested too deep to be parsed: " + std::to_string(nesting) +
                                     " brackets are open, expected at most " + std::to_string(MAX_NESTING));
        }
        common_chat_msg msg;
        with_stack_for(nesting, [&] {
            msg = common_chat_parse(text, is_partial, params);
            if (!is_partial && n_read(text) < text.size()) {
                throw std::runtime_error("the text goes on after what the format allows");
            }
        });
        return msg;
    }

    // Whether the parser reads a whole text without going back before a call or a thought that it has begun: a stream
    // has sent it, and it is not in the message.
    bool is_straight(const std::string & text) const {
        const size_t nesting = text_nesting(text);
        if (params.parser.empty() || nesting > MAX_NESTING) {
            return true;
        }
        bool is_straight = true;
        with_stack_for(nesting, [&] {
            common_peg_parse_context ctx(params.generation_prompt + text, COMMON_PEG_PARSE_FLAG_LENIENT);
            const auto               result = params.parser.parse(ctx);
            const auto               name   = [](const common_peg_ast_node & node) {
                return std::make_pair(node.tag, node.start);
            };
            std::set<std::pair<std::string, size_t>> kept;
            ctx.ast.visit(result, [&](const common_peg_ast_node & node) { kept.insert(name(node)); });
            for (common_peg_ast_id id = 0; id < ctx.ast.size() && is_straight; ++id) {
                const auto & node = ctx.ast.get(id);
                const bool   is_sent =
                    node.tag == tags::TOOL_NAME || (node.tag == tags::REASONING && node.start < node.end);
                is_straight = !is_sent || kept.count(name(node)) > 0;
            }
        });
        return is_straight;
    }

    std::vector<common_chat_msg_diff> update(const std::string & text_added, bool is_partial) {
        const busy_flag::scope in_use(busy);
        text += text_added;
        common_chat_msg next = parse(text, is_partial);
        if (!is_partial) {
            with_stack_for(text_nesting(text), [&] { keep_begun_tag(next); });
        }
        if (is_partial && n_begun == 0 && message.content.empty() && may_think(next) && is_part_of_tag(next.content)) {
            next.content.clear();
        }
        keep(message.content, next.content);
        keep(message.reasoning_content, next.reasoning_content);
        if (next.empty()) {
            return {};
        }
        next.set_tool_call_ids(tool_call_ids, random_id);
        auto diffs = common_chat_msg_diff::compute_diffs(message, next);
        message    = std::move(next);
        return diffs;
    }

    common_chat_msg message;

  private:
    template <class function>
    static void with_stack_for(size_t nesting, const function & work) {
        if (nesting > SMALL_NESTING) {
            on_big_stack(work);
        } else {
            work();
        }
    }

    // Bytes of a whole text that the format's parser reads. llama.cpp leaves out what follows, be it a call.
    size_t n_read(const std::string & text) const {
        if (params.parser.empty()) {
            return text.size();
        }
        common_peg_parse_context ctx(params.generation_prompt + text, COMMON_PEG_PARSE_FLAG_LENIENT);
        const auto               result    = params.parser.parse(ctx);
        const auto               next_word = [&](size_t at) {
            return ctx.input.find_first_not_of(BLANK, at);
        };
        size_t next = next_word(result.end);
        if (params.format == COMMON_CHAT_FORMAT_PEG_GEMMA4 && next != std::string::npos &&
            ctx.input.compare(next, std::strlen(LONE_TAG), LONE_TAG) == 0) {
            next = next_word(next + std::strlen(LONE_TAG));
        }
        const size_t n_prompt = params.generation_prompt.size();
        return !result.success() || next == std::string::npos ? text.size() : std::max(result.end, n_prompt) - n_prompt;
    }

    // A whole text may end with what could begin a tag, such as "<": no more comes, so it is text. llama.cpp's parser
    // waits for the rest.
    void keep_begun_tag(common_chat_msg & msg) const {
        if (params.parser.empty() || !msg.tool_calls.empty()) {
            return;
        }
        common_peg_parse_context ctx(params.generation_prompt + text, COMMON_PEG_PARSE_FLAG_LENIENT);
        const auto               result = params.parser.parse(ctx);
        if (!result.need_more_input()) {
            return;
        }
        const size_t n_prompt = params.generation_prompt.size();
        size_t       last     = n_prompt - std::min(n_prompt, n_begun); // the tag may begin in the begun text
        size_t       end      = n_prompt;
        bool         thinks   = false;
        ctx.ast.visit(result, [&](const common_peg_ast_node & node) {
            const bool is_thought = node.tag == tags::REASONING;
            if ((is_thought || node.tag == tags::CONTENT) && node.end >= last) {
                last   = node.end;
                end    = node.end;
                thinks = is_thought;
            }
        });
        const size_t tag_end = thinks ? ctx.input.find_first_of(">]", end) : std::string::npos; // of the thought
        const auto   is_more = [&](size_t at) {
            const size_t begin = ctx.input.find_first_not_of(BLANK, at);
            if (begin == std::string::npos || ctx.input.size() - begin >= TAG_MAX) {
                return false;
            }
            const size_t second = std::min(ctx.input.find_first_not_of(ctx.input[begin], begin), ctx.input.size());
            const size_t from   = second - begin < 3 ? second : begin; // one or two signs begin a tag that has them
            return ctx.input.find_first_of(std::string(BLANK) + ">]", from) == std::string::npos;
        };
        if (is_more(end)) {
            (thinks ? msg.reasoning_content : msg.content) += ctx.input.substr(end);
        } else if (tag_end != std::string::npos && is_more(tag_end + 1) && !begins_an_end(ctx.input.substr(end))) {
            msg.content += ctx.input.substr(ctx.input.find_first_not_of(BLANK, tag_end + 1));
        }
    }

    // Whether a text is the beginning of what ends a part of an answer: Kimi K3's "<|close|>think<|sep|>" has two
    // signs.
    bool begins_an_end(const std::string & rest) const {
        for (part_id id = 0; id < params.parser.size(); ++id) {
            const auto * until = std::get_if<common_peg_until_parser>(&params.parser.get(id));
            for (const std::string & end : until ? until->delimiters : std::vector<std::string>{}) {
                if (rest.size() < end.size() && end.compare(0, rest.size(), rest) == 0) {
                    return true;
                }
            }
        }
        return false;
    }

    // A text that was sent stays, also if its end turns out to begin a tag, which goes on with it if it is none.
    static void keep(const std::string & sent, std::string & next) {
        if (sent.compare(0, next.size(), next) == 0) {
            next = sent;
        }
    }

    // Has the answer a thought, or does the prompt end with a tag, such as one that begins a thought?
    bool may_think(const common_chat_msg & msg) const {
        const size_t end = params.generation_prompt.find_last_not_of(BLANK);
        return !msg.reasoning_content.empty() || (end != std::string::npos && (params.generation_prompt[end] == '>' ||
                                                                               params.generation_prompt[end] == ']'));
    }

    // After a thought that no tag has ended, a format takes the beginning of a tag for the answer's, until it goes on.
    static bool is_part_of_tag(const std::string & content) {
        const size_t begin = content.find_first_not_of(BLANK);
        return begin != std::string::npos && (content[begin] == '<' || content[begin] == '[') &&
               content.size() - begin < TAG_MAX &&
               content.find_first_of(std::string(BLANK) + ">]", begin) == std::string::npos;
    }

    common_chat_parser_params params;
    size_t                    n_begun = 0; // bytes of the text that the prompt begins
    std::string               text;
    std::vector<std::string>  tool_call_ids;
    busy_flag                 busy;
};

py::dict to_dict(const common_chat_tool_call & call) {
    py::dict function;
    function["name"]      = to_str(call.name);
    function["arguments"] = to_str(call.arguments);
    py::dict dict;
    dict["type"]     = "function";
    dict["function"] = function;
    if (!call.id.empty()) {
        dict["id"] = to_str(call.id);
    }
    return dict;
}

// As common_chat_msg::to_json_oaicompat.
py::dict to_dict(const common_chat_msg & msg) {
    py::dict dict;
    dict["role"]    = "assistant";
    dict["content"] = to_str(msg.content);
    if (!msg.reasoning_content.empty()) {
        dict["reasoning_content"] = to_str(msg.reasoning_content);
    }
    if (!msg.tool_calls.empty()) {
        py::list calls;
        for (const common_chat_tool_call & call : msg.tool_calls) {
            calls.append(to_dict(call));
        }
        dict["tool_calls"] = calls;
    }
    return dict;
}

// As server_chat_msg_diff_to_json_oaicompat.
py::dict to_dict(const common_chat_msg_diff & diff) {
    py::dict dict;
    if (!diff.reasoning_content_delta.empty()) {
        dict["reasoning_content"] = to_str(diff.reasoning_content_delta);
    }
    if (!diff.content_delta.empty()) {
        dict["content"] = to_str(diff.content_delta);
    }
    if (diff.tool_call_index != std::string::npos) {
        const common_chat_tool_call & delta = diff.tool_call_delta;
        py::dict                      call;
        call["index"] = diff.tool_call_index;
        if (!delta.id.empty()) {
            call["id"]   = to_str(delta.id);
            call["type"] = "function";
        }
        py::dict function;
        if (!delta.name.empty()) {
            function["name"] = to_str(delta.name);
        }
        if (!delta.arguments.empty()) {
            function["arguments"] = to_str(delta.arguments);
        }
        if (!function.empty()) {
            call["function"] = function;
        }
        py::list calls;
        calls.append(call);
        dict["tool_calls"] = calls;
    }
    return dict;
}

} // namespace

void register_parser(py::module_ & m) {
    const auto nogil = py::call_guard<py::gil_scoped_release>();

    py::class_<parser>(m, "Parser", "Parses one answer, as a whole or as it grows.")
        .def(py::init<int, const std::string &, const std::string &, bool, const std::string &>(), py::arg("format"),
             py::arg("generation_prompt"), py::arg("parser"), py::arg("is_continuation"), py::arg("begun"), nogil)
        .def(
            "parse",
            [](const parser & self, const std::string & text, bool is_partial) {
                common_chat_msg msg;
                {
                    py::gil_scoped_release release;
                    msg = self.parse(text, is_partial);
                }
                return to_dict(msg);
            },
            py::arg("text"), py::arg("is_partial") = false, "The message that a text stands for.")
        .def(
            "update",
            [](parser & self, const std::string & text_added, bool is_partial) {
                std::vector<common_chat_msg_diff> diffs;
                {
                    py::gil_scoped_release release;
                    diffs = self.update(text_added, is_partial);
                }
                py::list deltas;
                for (const common_chat_msg_diff & diff : diffs) {
                    deltas.append(to_dict(diff));
                }
                return deltas;
            },
            py::arg("text_added"), py::arg("is_partial") = true, "Add text to the answer: what is new in its message.")
        .def(
            "is_straight",
            [](const parser & self, const std::string & text) {
                const py::gil_scoped_release release;
                return self.is_straight(text);
            },
            py::arg("text"),
            "Whether the message of a whole text has all calls and thoughts that the parser has begun to read.")
        .def_property_readonly("message", [](const parser & self) { return to_dict(self.message); });
}

} // namespace eagle3::chat
