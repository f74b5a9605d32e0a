#include "system.h"

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>
#else
#include <dlfcn.h>
#include <pthread.h>
#include <time.h>
#endif

namespace eagle3 {

std::filesystem::path path_of(const std::string & utf8) {
    return std::filesystem::u8path(utf8);
}

namespace {

struct job {
    void (*run)(void *);
    void * arg;
};

#ifdef _WIN32
DWORD WINAPI run_job(void * arg) {
    const auto * j = static_cast<const job *>(arg);
    j->run(j->arg);
    return 0;
}
#else
void * run_job(void * arg) {
    const auto * j = static_cast<const job *>(arg);
    j->run(j->arg);
    return nullptr;
}
#endif

} // namespace

bool run_on_stack(size_t n_bytes, void (*run)(void *), void * arg) {
    job j{ run, arg };
#ifdef _WIN32
    // without the flag the whole size would be committed at once
    const HANDLE thread = CreateThread(nullptr, n_bytes, run_job, &j, STACK_SIZE_PARAM_IS_A_RESERVATION, nullptr);
    if (!thread) {
        return false;
    }
    WaitForSingleObject(thread, INFINITE);
    CloseHandle(thread);
#else
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, n_bytes);
    pthread_t thread;
    const int res = pthread_create(&thread, &attr, run_job, &j);
    pthread_attr_destroy(&attr);
    if (res != 0) {
        return false;
    }
    pthread_join(thread, nullptr);
#endif
    return true;
}

double thread_cpu_seconds() {
#ifdef _WIN32
    FILETIME created, ended, kernel, user; // in 100 ns
    if (!GetThreadTimes(GetCurrentThread(), &created, &ended, &kernel, &user)) {
        return 0.0;
    }
    const auto of = [](const FILETIME & t) {
        return 0x1p32 * t.dwHighDateTime + t.dwLowDateTime;
    };
    return 1e-7 * (of(kernel) + of(user));
#else
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
#endif
}

void * find_loaded(const std::string & library, const char * symbol) {
#if defined(_WIN32)
    const HMODULE lib = GetModuleHandleA((library + ".dll").c_str());
    return lib ? reinterpret_cast<void *>(GetProcAddress(lib, symbol)) : nullptr;
#elif defined(__APPLE__)
    (void) library; // _library.py has opened them globally, and dyld does not find them by their names alone
    return dlsym(RTLD_DEFAULT, symbol);
#else
    void * lib = dlopen(("lib" + library + ".so.0").c_str(), RTLD_NOW | RTLD_NOLOAD);
    return lib ? dlsym(lib, symbol) : nullptr;
#endif
}

} // namespace eagle3
