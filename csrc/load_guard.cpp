#include "load_guard.h"

#include "llama.h"

#include <cstring>
#include <mutex>

namespace eagle3 {

// llama.cpp has one abort callback and one log for the whole process. Ours are set while any thread has a guard; on the
// other threads they call those that were set before.
struct guard_state {
    std::mutex            mutex;
    int                   n_guards      = 0;
    int                   n_listeners   = 0;
    ggml_abort_callback_t abort_before  = nullptr;
    ggml_log_callback     log_before    = nullptr;
    void *                log_user_data = nullptr;

    // The innermost guards of this thread.
    static thread_local const abort_guard * guard;
    static thread_local load_guard *        listener;

    static void on_abort(const char * message);
    static void on_log(ggml_log_level level, const char * text, void * user_data);
    static void read(load_guard & guard, ggml_log_level level, std::string line);
};

thread_local const abort_guard * guard_state::guard    = nullptr;
thread_local load_guard *        guard_state::listener = nullptr;

static guard_state g_state;

// "/build/src/llama-model.cpp:1362: GGML_ASSERT(a <= b) failed" without the folders.
static std::string without_folders(const std::string & message) {
    const size_t end   = message.find(": ");
    const size_t slash = message.find_last_of("/\\", end);
    return end == std::string::npos || slash == std::string::npos ? message : message.substr(slash + 1);
}

// Is it an assertion of a backend? "/build/ggml/src/ggml-cpu/ops.cpp:4132: ..."
static bool is_in_kernel(const std::string & message) {
    const std::string file = message.substr(0, message.find(": "));
    size_t            at   = file.rfind("ggml/src/");
    at                     = at == std::string::npos ? file.rfind("ggml\\src\\") : at;
    return at != std::string::npos && file.find_first_of("/\\", at + strlen("ggml/src/")) != std::string::npos;
}

void guard_state::on_abort(const char * message) {
    if (!guard || (guard->scope_ == abort_guard::outside_kernels && is_in_kernel(message))) {
        if (g_state.abort_before) {
            g_state.abort_before(message);
        } else {
            fprintf(stderr, "%s\n", message);
        }
        return; // then ggml ends the process
    }
    const std::string reason = without_folders(message);
    if (listener) {
        listener->reason_   = reason;
        listener->is_cause_ = listener->asserted_ = true;
    }
    throw assertion_error(reason);
}

// Reads a line of the log.
void guard_state::read(load_guard & guard, ggml_log_level level, std::string line) {
    if (level == GGML_LOG_LEVEL_DEBUG) {
        // "create_tensor: loading tensor blk.0.attn_q.weight"
        const std::string mark = "create_tensor: loading tensor ";
        if (line.compare(0, mark.size(), mark) == 0) {
            guard.tensors_.insert(line.substr(mark.size()));
        }
    } else if (level == GGML_LOG_LEVEL_WARN) {
        // "validate_override: Warning: Bad metadata override type for key 'llama.block_count', expected int but got
        // str"
        const std::string mark = "Bad metadata override type for key ";
        if (const size_t at = line.find(mark); at != std::string::npos) {
            guard.ignored_.insert(line.substr(at + mark.size()));
        }
    } else if (level == GGML_LOG_LEVEL_ERROR && !guard.asserted_) {
        // "llama_model_load: error loading model: missing tensor 'output_norm.weight'"
        const std::string marks[]  = { "error loading model: ", "failed to initialize the context: " };
        bool              is_cause = false;
        for (const std::string & mark : marks) {
            if (const size_t at = line.find(mark); at != std::string::npos) {
                line     = line.substr(at + mark.size());
                is_cause = true;
            }
        }
        if (!line.empty() && (guard.reason_.empty() || (is_cause && !guard.is_cause_))) {
            guard.reason_   = line;
            guard.is_cause_ = is_cause;
        }
    }
}

void guard_state::on_log(ggml_log_level level, const char * text, void *) {
    if (load_guard * guard = listener) {
        std::string line = text;
        line.erase(line.find_last_not_of(" \n\r") + 1);
        read(*guard, level, line);
    }
    if (g_state.log_before) {
        g_state.log_before(level, text, g_state.log_user_data);
    }
}

abort_guard::abort_guard(scope scope) : outer_(guard_state::guard), scope_(scope) {
    const std::lock_guard<std::mutex> lock(g_state.mutex);
    if (g_state.n_guards++ == 0) {
        g_state.abort_before = ggml_set_abort_callback(guard_state::on_abort);
    }
    guard_state::guard = this;
}

abort_guard::~abort_guard() {
    const std::lock_guard<std::mutex> lock(g_state.mutex);
    guard_state::guard = outer_;
    if (--g_state.n_guards == 0) {
        ggml_set_abort_callback(g_state.abort_before);
    }
}

load_guard::load_guard(abort_guard::scope scope) : guard_(scope), outer_(guard_state::listener) {
    const std::lock_guard<std::mutex> lock(g_state.mutex);
    if (g_state.n_listeners++ == 0) {
        llama_log_get(&g_state.log_before, &g_state.log_user_data);
        llama_log_set(guard_state::on_log, nullptr);
    }
    guard_state::listener = this;
}

load_guard::~load_guard() {
    const std::lock_guard<std::mutex> lock(g_state.mutex);
    guard_state::listener = outer_;
    if (--g_state.n_listeners == 0) {
        llama_log_set(g_state.log_before, g_state.log_user_data);
    }
}

} // namespace eagle3
