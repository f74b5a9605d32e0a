#include "target/projector_info.h"

#include "error.h"
#include "gguf_file.h"
#include "weight_types.h"

#include <string_view>

namespace eagle3 {

// Throws for a tensor with which ggml cannot compute: it would end the process on a thread that no exception could
// leave.
static void check_types(const gguf_file & file) {
    for (const ggml_tensor * tensor : file.tensors()) {
        const bool is_bias = std::string_view(tensor->name).find(".bias") != std::string_view::npos;
        if (is_bias ? tensor->type != GGML_TYPE_F32 : !is_matrix_type(tensor->type) && tensor->type != GGML_TYPE_I32) {
            throw model_file_error(format(
                "'%s': tensor '%s': expected %s, found the type %s: the file is damaged, fetch "
                "it again or convert the projector anew",
                file.path().c_str(), tensor->name, is_bias ? "f32 for what is added" : "a type that ggml multiplies",
                ggml_type_name(tensor->type)));
        }
    }
}

projector_info read_projector_info(const std::string & path) {
    const gguf_file   file(path);
    const std::string arch = file.get_str("general.architecture").value_or("");
    if (arch != "clip") {
        throw model_file_error(
            format("'%s': expected a multimodal projector (general.architecture 'clip'), found architecture '%s'",
                   path.c_str(), arch.c_str()));
    }
    file.check_numbers();
    check_types(file);
    const std::string type = file.get_str("clip.projector_type").value_or("");
    projector_info    res;
    if (file.get_bool("clip.has_vision_encoder").value_or(false)) {
        res.vision = type.empty() ? file.get_str("clip.vision.projector_type").value_or("") : type;
    }
    if (file.get_bool("clip.has_audio_encoder").value_or(false)) {
        res.audio = type.empty() ? file.get_str("clip.audio.projector_type").value_or("") : type;
    }
    if (res.vision.empty() && res.audio.empty()) {
        throw model_file_error(
            format("'%s': a projector for images or sounds has keys clip.projector_type and clip.has_vision_encoder or "
                   "clip.has_audio_encoder, this file lacks them",
                   path.c_str()));
    }
    if (res.vision == "llama4" && file.find_tensor("v.blk.0.attn_post_norm.weight") != nullptr) {
        throw model_file_error(format(
            "'%s': expected tensors v.blk.*.ln2.*, found them as v.blk.*.attn_post_norm.*, where llama.cpp's "
            "encoder for Llama 4 takes them for others and encodes pictures wrongly: its converter names them so "
            "since it has Gemma 4. Take a file that an older one made, or rename them",
            path.c_str()));
    }
    return res;
}

} // namespace eagle3
