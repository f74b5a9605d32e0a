// Preloaded into llama.cpp's llama-server: makes the target generate a recorded text. PEER_REPLAY names a file with the
// token ids of a prompt and its answer; at the row of position p, token p + 1 of them is always the most probable one.
// Everything is computed as usual.

#include <dlfcn.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unordered_map>
#include <vector>

struct llama_context;
struct llama_model;
struct llama_batch_ext;

namespace {

template <typename F>
F * next(const char * name) {
    return reinterpret_cast<F *>(dlsym(RTLD_NEXT, name));
}

std::vector<int32_t> text;
std::vector<int32_t> positions; // positions of the target's latest batch

std::unordered_map<const llama_batch_ext *, std::vector<int32_t>> positions_of;
timespec                                                          read_at{};

void read_text() {
    const char * path = getenv("PEER_REPLAY");
    struct stat  now{};
    if (path == nullptr || stat(path, &now) != 0 ||
        (now.st_mtim.tv_sec == read_at.tv_sec && now.st_mtim.tv_nsec == read_at.tv_nsec)) {
        return;
    }
    read_at     = now.st_mtim;
    FILE * file = fopen(path, "r");
    text.clear();
    for (int token; file != nullptr && fscanf(file, "%d", &token) == 1;) {
        text.push_back(token);
    }
    if (file != nullptr) {
        fclose(file);
    }
}

bool is_target(llama_context * ctx) {
    static const auto get_model = next<const llama_model *(const llama_context *)>("llama_get_model");
    static const auto get_meta =
        next<int32_t(const llama_model *, const char *, char *, size_t)>("llama_model_meta_val_str");
    char arch[64] = "";
    get_meta(get_model(ctx), "general.architecture", arch, sizeof(arch));
    return strncmp(arch, "eagle3", 6) != 0;
}

} // namespace

extern "C" bool llama_batch_ext_set_pos(llama_batch_ext * batch, int32_t i, const int32_t * pos) {
    static const auto set  = next<bool(llama_batch_ext *, int32_t, const int32_t *)>("llama_batch_ext_set_pos");
    auto &            held = positions_of[batch];
    held.resize(static_cast<size_t>(i) + 1);
    held.back() = pos[0];
    return set(batch, i, pos);
}

// type: llama_process_type
extern "C" int32_t llama_process(llama_context * ctx, int type, llama_batch_ext * batch) {
    static const auto process = next<int32_t(llama_context *, int, llama_batch_ext *)>("llama_process");
    if (is_target(ctx)) {
        read_text();
        positions = positions_of[batch];
    }
    return process(ctx, type, batch);
}

extern "C" float * llama_get_logits_ith(llama_context * ctx, int32_t i) {
    static const auto get = next<float *(llama_context *, int32_t)>("llama_get_logits_ith");
    float *           row = get(ctx, i);
    const auto        at  = i < 0 ? positions.size() + static_cast<size_t>(i) : static_cast<size_t>(i);
    if (row != nullptr && is_target(ctx) && at < positions.size()) {
        const auto next = static_cast<size_t>(positions[at]) + 1;
        if (next < text.size()) {
            row[text[next]] = 1e9f;
        }
    }
    return row;
}
