// Preloaded into llama.cpp's llama-speculative-simple: its statistics time draft() and accept(), but not process(), in
// which the drafter processes the target's rows. It writes one line of JSON to the file named by PEER_CLOCK. It also
// makes the tool's logger print its remaining lines at exit: that thread is not waited for, and figures could be lost.

#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

struct common_speculative;
struct common_batch;
struct common_log;

namespace {

struct process_clock {
    long long t_prompt_us = 0; // the first call, which has the prompt
    long long t_steps_us = 0;
    long long n_calls     = 0;

    ~process_clock() {
        const auto log_main = reinterpret_cast<common_log * (*)()>(dlsym(RTLD_DEFAULT, "_Z15common_log_mainv"));
        const auto log_pause =
            reinterpret_cast<void (*)(common_log *)>(dlsym(RTLD_DEFAULT, "_Z16common_log_pauseP10common_log"));
        if (log_main && log_pause) {
            log_pause(log_main());
        }

        const char * path = getenv("PEER_CLOCK");
        FILE *       file = path && n_calls > 0 ? fopen(path, "w") : nullptr;
        if (file) {
            fprintf(file, "{\"t_prompt_us\": %lld, \"t_steps_us\": %lld, \"n_steps\": %lld}\n", t_prompt_us,
                    t_steps_us, n_calls - 1);
            fclose(file);
        }
    }
};

process_clock clock_of_process;

} // namespace

bool common_speculative_process(common_speculative * spec, const common_batch & batch) {
    using process_t           = bool (*)(common_speculative *, const common_batch &);
    static const auto process = reinterpret_cast<process_t>(
        dlsym(RTLD_NEXT, "_Z26common_speculative_processP18common_speculativeRK12common_batch"));
    const auto start  = std::chrono::steady_clock::now();
    const bool result = process(spec, batch);
    const auto t_us   = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start);
    (clock_of_process.n_calls++ == 0 ? clock_of_process.t_prompt_us : clock_of_process.t_steps_us) += t_us.count();
    return result;
}
