#include "big_stack.h"
#include "calls.h"
#include "chat.h"
#include "frame.h"
#include "module.h"
#include "open_schemas.h"
#include "template_steps.h"

#include <pybind11/stl.h>

#include <exception>
#include <utility>

namespace eagle3::chat {

namespace {

// is_own: the template is the model's; for errors.
template <typename F>
void within_bounds(size_t n_steps, bool is_own, F && work) {
    on_big_stack([&] {
        template_left = { n_steps, TEMPLATE_BYTES_MAX };
        std::exception_ptr error;
        try {
            work();
        } catch (const std::exception &) {
            error = std::current_exception();
        }
        const auto left = std::exchange(template_left, {});
        if (left.steps_left == 0) { // its own error, without llama.cpp's words around it, which may be none
            const std::string text =
                std::string(is_own ? "the model's chat template " : "the chat template that was given ") +
                (left.reached == template_limit::bytes
                     ? "takes more than " + std::to_string(TEMPLATE_BYTES_MAX >> 20) +
                           " MiB for this conversation, expected less"
                     : "calls itself without end, or goes on for too long: expected at most " +
                           std::to_string(n_steps) + " steps for a conversation") +
                "; send a shorter conversation, or use another template";
            if (left.reached == template_limit::depth) { // found at once; plainer tools may be less deep
                throw std::runtime_error(text);
            }
            throw template_limit_error(text);
        }
        if (error) {
            std::rethrow_exception(error);
        }
    });
}

class templates {
  public:
    templates(uintptr_t model, const std::string & source, const std::string & bos, const std::string & eos) :
        is_own(source.empty()) {
        if (!model && source.empty()) {
            throw std::invalid_argument("expected a model or a template, found neither");
        }
        within_bounds(ANALYSIS_STEPS_MAX, is_own, [&] {
            // common_chat_templates_init would lose llama.cpp's message
            jinja::lexer lexer;
            jinja::parse_from_tokens(lexer.tokenize(source));
            tmpls = common_chat_templates_init(reinterpret_cast<const llama_model *>(model), source, bos, eos);
        });
    }

    common_chat_params apply(const std::string & request) const;

    common_chat_templates_ptr tmpls;
    const bool                is_own;
};

// The text with which the prompt begins the answer.
std::string begun(const common_chat_templates_inputs & inputs) {
    const auto how = inputs.continue_final_message;
    if (inputs.messages.empty() || how == COMMON_CHAT_CONTINUATION_NONE || how == COMMON_CHAT_CONTINUATION_REASONING) {
        return "";
    }
    return inputs.messages.back().render_content();
}

// keys and defaults: llama_cpp_eagle3/chat/templates.py
common_chat_params templates::apply(const std::string & request) const {
    const common_json            body = common_json::parse(request);
    common_chat_templates_inputs inputs;
    inputs.messages               = common_chat_msgs_parse_oaicompat(body.at("messages"));
    inputs.tools                  = common_chat_tools_parse_oaicompat(body.at("tools"));
    inputs.tool_choice            = common_chat_tool_choice_parse_oaicompat(body.at("tool_choice"));
    inputs.grammar                = std::string(body.at("grammar"));
    inputs.add_generation_prompt  = body.at("add_generation_prompt").get<bool>();
    inputs.continue_final_message = common_chat_continuation_parse(body.at("continue_final_message"));
    inputs.parallel_tool_calls    = body.at("parallel_tool_calls").get<bool>();
    inputs.reasoning_format       = common_reasoning_format_from_name(body.at("reasoning_format"));
    inputs.enable_thinking        = body.at("enable_thinking").get<bool>();
    if (!body.at("json_schema").is_null()) {
        inputs.json_schema = body.at("json_schema").dump();
    }
    for (const auto & item : body.at("chat_template_kwargs").items()) {
        inputs.chat_template_kwargs[item.key()] = item.value().dump();
    }
    const auto   framed    = common_chat_tools_parse_oaicompat(body.at("framed_tools"));
    const auto & tools     = framed.empty() ? inputs.tools : framed;
    const bool   is_forced = !tools.empty() && inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_REQUIRED;
    const bool   is_single = body.at("one_call").get<bool>();
    const bool   is_bare   = !inputs.json_schema.empty() && begun(inputs).empty();
    const auto   answer_to = [&](const std::string & text) {
        const call_wishes  wishes(tools, is_forced, is_single, text, is_bare);
        common_chat_params params = common_chat_templates_apply(tmpls.get(), inputs);
        if (!framed.empty() && inputs.json_schema.empty()) {
            frame_calls(params, begun(inputs), is_forced, inputs.reasoning_format, framed);
        }
        return params;
    };
    const std::string given = begun(inputs);
    if (!is_forced || given.empty()) {
        return answer_to("");
    }
    // some of llama.cpp's parsers allow a text before a call only if the model may choose
    for (const auto choice : { COMMON_CHAT_TOOL_CHOICE_REQUIRED, COMMON_CHAT_TOOL_CHOICE_AUTO }) {
        inputs.tool_choice        = choice;
        common_chat_params params = answer_to(given);
        const auto         text   = text_before_call(params, given);
        if (text) {
            if (*text != given) {
                params = answer_to(*text);
            }
            params.grammar_lazy = false;
            params.grammar_triggers.clear();
            return params;
        }
    }
    throw std::invalid_argument(
        "tool_choice: a call is required, and cannot follow the text that the last message begins: answers of this "
        "chat template have either a text or calls, or the text begins a call of no tool that is offered. Leave that "
        "message out, or do not require a call");
}

py::list to_list(const std::vector<std::string> & texts) {
    py::list list;
    for (const std::string & text : texts) {
        list.append(to_str(text));
    }
    return list;
}

py::dict to_dict(const common_chat_params & params, const std::vector<open_schema> & open) {
    py::list schemas;
    for (const open_schema & schema : open) {
        schemas.append(
            py::make_tuple(schema.rule, to_str(schema.name), to_str(*schema.document), to_str(schema.pointer)));
    }
    py::list triggers;
    for (const common_grammar_trigger & trigger : params.grammar_triggers) {
        triggers.append(py::make_tuple(static_cast<int>(trigger.type), to_str(trigger.value)));
    }
    py::list delimiters;
    for (const common_chat_msg_delimiter & d : params.message_delimiters.delimiters) {
        delimiters.append(py::make_tuple(common_chat_role_to_string(d.role), to_str(d.delimiter)));
    }
    py::dict dict;
    dict["format"]             = static_cast<int>(params.format);
    dict["prompt"]             = to_str(params.prompt);
    dict["grammar"]            = to_str(params.grammar);
    dict["grammar_lazy"]       = params.grammar_lazy;
    dict["grammar_triggers"]   = triggers;
    dict["generation_prompt"]  = to_str(params.generation_prompt);
    dict["thinking_start_tag"] = to_str(params.thinking_start_tag);
    dict["thinking_end_tags"]  = to_list(params.thinking_end_tags);
    dict["preserved_tokens"]   = to_list(params.preserved_tokens);
    dict["additional_stops"]   = to_list(params.additional_stops);
    dict["parser"]             = to_str(params.parser);
    dict["message_delimiters"] = delimiters;
    dict["schemas"]            = schemas;
    return dict;
}

} // namespace

void register_templates(py::module_ & m) {
    const auto nogil = py::call_guard<py::gil_scoped_release>();

    py::class_<templates>(m, "Templates", "A model's chat templates, or one template.")
        .def(py::init<uintptr_t, const std::string &, const std::string &, const std::string &>(), py::arg("model"),
             py::arg("source"), py::arg("bos_token"), py::arg("eos_token"), nogil)
        .def(
            "apply",
            [](const templates & self, const std::string & request) {
                common_chat_params       params;
                std::vector<open_schema> schemas;
                {
                    py::gil_scoped_release release;
                    within_bounds(RENDER_STEPS_MAX, self.is_own, [&] {
                        open_schemas open;
                        params  = self.apply(request);
                        schemas = std::move(open.found);
                    });
                }
                return to_dict(params, schemas);
            },
            py::arg("request"),
            "Render a request, which is JSON; the result has how its answer is sampled and parsed. Its grammar lacks "
            "the rules of `schemas`: (rule, name, document, pointer).")
        .def(
            "source",
            [](const templates & self, const std::string & variant) {
                return to_str(common_chat_templates_source(self.tmpls.get(), variant));
            },
            py::arg("variant") = "", "Jinja source; \"\" if there is no such variant.")
        .def_property_readonly(
            "is_explicit", [](const templates & self) { return common_chat_templates_was_explicit(self.tmpls.get()); })
        .def_property_readonly("caps",
                               [](const templates & self) { return common_chat_templates_get_caps(self.tmpls.get()); })
        .def_property_readonly("supports_thinking", [](const templates & self) {
            const py::gil_scoped_release release;
            bool                         does = false;
            within_bounds(ANALYSIS_STEPS_MAX, self.is_own,
                          [&] { does = common_chat_templates_support_enable_thinking(self.tmpls.get()); });
            return does;
        });

    m.def("format_name", [](int format) { return common_chat_format_name(static_cast<common_chat_format>(format)); });
}

} // namespace eagle3::chat
