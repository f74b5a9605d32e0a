#include "rpc_relay.h"

#include "error.h"
#include "ggml-rpc.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#ifndef _WIN32
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

namespace eagle3 {

static_assert(RPC_PROTO_MAJOR_VERSION == 7, "compare the table of answers with ggml-rpc.cpp");

namespace {

constexpr size_t n_chunk = 1 << 18;

// What a server answers to a command.
struct answer {
    uint8_t  command;
    uint64_t size;
    uint64_t value;      // its first bytes if the server is lost
    uint64_t asked  = 0; // of a buffer, its size, or which one
    uint32_t device = 0;
};

// What ggml remembers of a device as long as the process lives.
struct limits {
    uint64_t alignment;
    uint64_t size_max; // of a buffer
};

constexpr uint64_t alignment_max = 1 << 20;
constexpr int      n_seconds     = 5; // to wait for an answer before anything is on the server

template <typename T>
T read_at(const std::vector<char> & message, size_t at) {
    T value = 0;
    if (at + sizeof(value) <= message.size()) {
        memcpy(&value, message.data() + at, sizeof(value));
    }
    return value;
}

// The answer to a request; none if it has no answer. A request is a command (1 byte), a size (8 bytes) and so many
// bytes; an answer is a size and so many bytes (enum rpc_cmd of ggml-rpc.cpp).
std::optional<answer> answer_to(const std::vector<char> & request, const std::vector<limits> & devices) {
    const auto     command = static_cast<uint8_t>(request[0]);
    const uint64_t last    = read_at<uint64_t>(request, request.size() - sizeof(last)); // of a tensor, its size
    const uint32_t device  = read_at<uint32_t>(request, 9);
    const bool     is_one  = device < devices.size();
    switch (command) {
        case 0: // a buffer: none can be had
            return answer{ command, 16, 0, last, device };
        case 1: // an alignment
            return answer{ command, 8, is_one ? devices[device].alignment : alignment_max };
        case 2: // the largest size of a buffer
            return answer{ command, 8, is_one ? devices[device].size_max : UINT64_MAX };
        case 3: // where a buffer begins
            return answer{ command, 8, alignment_max, last };
        case 7: // is the tensor of that hash there?
        case 9: // was it copied?
            return answer{ command, 1, 0 };
        case 8: // a tensor
            return answer{ command, last, 0 };
        case 11: // memory, free and all
            return answer{ command, 16, 0 };
        case 13: // what a tensor takes
            return answer{ command, 8, 0 };
        case 14: // who are you?
            return answer{ command, 28, 0 };
        case 15: // how many devices?
            return answer{ command, 4, 0 };
        default: return std::nullopt;
    }
}

// Moves all of n bytes by calls of recv or send, each of which moves some.
template <typename T, typename F>
bool move_all(T * data, size_t n, F && move) {
    while (n > 0) {
        const ssize_t done = move(data, n);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done <= 0) {
            return false;
        }
        data += done;
        n -= static_cast<size_t>(done);
    }
    return true;
}

bool receive(int fd, char * data, size_t n) {
    return move_all(data, n, [fd](char * to, size_t n_left) { return recv(fd, to, n_left, 0); });
}

bool send_all(int fd, const char * data, size_t n) {
#ifdef MSG_NOSIGNAL
    constexpr int flags = MSG_NOSIGNAL;
#else
    constexpr int flags = 0; // SO_NOSIGPIPE
#endif
    return move_all(data, n, [fd](const char * from, size_t n_left) { return send(fd, from, n_left, flags); });
}

void prepare(int fd) {
    fcntl(fd, F_SETFD, FD_CLOEXEC);
#ifdef SO_NOSIGPIPE
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof(on));
#endif
}

uint64_t ask(int fd, uint8_t command, uint32_t device) {
    char           request[13];
    const uint64_t n_body = sizeof(device);
    request[0]            = static_cast<char>(command);
    memcpy(request + 1, &n_body, sizeof(n_body));
    memcpy(request + 9, &device, sizeof(device));
    uint64_t found[2]; // the size of the answer, and it
    if (!send_all(fd, request, sizeof(request)) || !receive(fd, reinterpret_cast<char *>(found), sizeof(found)) ||
        found[0] != sizeof(found[1])) {
        throw error(format("it did not say within %d seconds what memory its device %u has", n_seconds, device));
    }
    return found[1];
}

// Asks the server before ggml does. ggml asks when it first needs a device, when the server may be lost already, and
// remembers the answer as long as the process lives.
std::vector<limits> ask_limits(int fd, size_t n_devices) {
    const auto wait = [fd](int seconds) {
        const timeval time{ seconds, 0 };
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
    };
    wait(n_seconds);
    std::vector<limits> devices;
    for (uint32_t device = 0; device < n_devices; ++device) {
        const uint64_t alignment = ask(fd, 1, device);
        if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > alignment_max) {
            throw error(format("memory of its device %u is aligned to %llu bytes: expected a power of 2 up to %llu",
                               device, static_cast<unsigned long long>(alignment),
                               static_cast<unsigned long long>(alignment_max)));
        }
        devices.push_back({ alignment, ask(fd, 2, device) });
    }
    wait(0);
    return devices;
}

} // namespace

struct rpc_relay::connection {
    int client = -1; // the other end of ggml-rpc's socket
    int server = -1;

    std::vector<limits>                    devices;
    std::unordered_map<uint64_t, uint64_t> alignments; // of buffers whose beginning ggml has not asked for yet

    std::atomic<bool> is_lost{ false };

    std::mutex              mutex;
    std::condition_variable changed;
    std::optional<answer>   expected;          // ggml-rpc waits for one answer at a time
    bool                    is_closed = false; // by ggml-rpc
    int                     n_threads = 0;

    // Does ggml-rpc have its end open? Needs the lock.
    bool is_held() const {
        pollfd p{ client, 0, 0 };
        return !is_closed && poll(&p, 1, 0) == 0;
    }

    // Must be called by both threads when they end.
    void end_thread() {
        const std::lock_guard<std::mutex> lock(mutex);
        if (--n_threads == 0) {
            close(client);
            close(server);
        }
        changed.notify_all();
    }

    void lose() {
        is_lost = true;
        shutdown(server, SHUT_RDWR); // both threads notice
    }

    // Passes ggml-rpc's requests to the server until ggml-rpc closes its socket.
    void pass_requests() {
        std::vector<char> buffer(n_chunk);
        std::vector<char> message;
        char              head[9];
        while (receive(client, head, sizeof(head))) {
            uint64_t size;
            memcpy(&size, head + 1, sizeof(size));
            message.assign(head, head + sizeof(head));
            if (size <= n_chunk) { // requests that have answers are short
                message.resize(sizeof(head) + size);
                if (!receive(client, message.data() + sizeof(head), size)) {
                    break;
                }
                if (const auto answer = answer_to(message, devices)) {
                    const std::lock_guard<std::mutex> lock(mutex);
                    expected = answer;
                    changed.notify_all();
                }
                size = 0;
            }
            pass_on(message.data(), message.size());
            for (; size > 0; size -= std::min<uint64_t>(size, n_chunk)) {
                const size_t n = std::min<uint64_t>(size, n_chunk);
                if (!receive(client, buffer.data(), n)) {
                    break;
                }
                pass_on(buffer.data(), n);
            }
        }
        {
            const std::lock_guard<std::mutex> lock(mutex);
            is_closed = true;
            changed.notify_all();
        }
        shutdown(server, SHUT_RDWR);
    }

    void pass_on(const char * data, size_t n) {
        if (!is_lost && !send_all(server, data, n)) {
            lose();
        }
    }

    // The next answer that ggml-rpc waits for; none when it has closed its socket.
    std::optional<answer> next_expected() {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return expected || is_closed; });
        return std::exchange(expected, std::nullopt);
    }

    // Passes the server's answers to ggml-rpc, or answers in the server's place.
    void pass_answers() {
        std::vector<char> buffer(n_chunk);
        while (true) {
            // reads before there is a request, to notice when the server is lost
            uint64_t   size     = 0;
            const bool has_head = !is_lost && receive(server, reinterpret_cast<char *>(&size), sizeof(size));
            if (!has_head) {
                note_end();
            }
            const auto answer = next_expected();
            if (!answer) {
                return;
            }
            if (has_head && size != answer->size) {
                lose();
            }
            if (!pass_answer(*answer, buffer)) {
                return;
            }
        }
    }

    // Can ggml go on with the first numbers of an answer? It rounds addresses up to the alignment that it remembers,
    // and asserts that a buffer has an address and is as large as requested.
    bool is_possible(const answer & a, const uint64_t (&values)[2]) {
        switch (a.command) {
            case 0: return values[0] == 0 || values[1] >= a.asked;
            case 1:
            case 2: return values[0] == a.value;
            case 3: {
                const auto found = alignments.find(a.asked);
                return values[0] != 0 && (found == alignments.end() || values[0] % found->second == 0);
            }
            default: return true;
        }
    }

    // Keeps what later answers are compared with.
    void keep(const answer & a, const uint64_t (&values)[2]) {
        if (a.command == 0 && a.device < devices.size()) {
            alignments[values[0]] = devices[a.device].alignment;
        } else if (a.command == 3) {
            alignments.erase(a.asked); // ggml asks only once
        }
    }

    bool pass_answer(const answer & a, std::vector<char> & buffer) {
        size_t n_head = sizeof(a.size);
        memcpy(buffer.data(), &a.size, n_head);
        uint64_t done = 0;
        do {
            char *       data     = buffer.data() + n_head;
            const size_t n        = std::min<uint64_t>(a.size - done, buffer.size() - n_head);
            bool         is_right = !is_lost && receive(server, data, n);
            if (is_right && a.size <= sizeof(uint64_t[2])) {
                uint64_t values[2] = {};
                memcpy(values, data, n);
                is_right = is_possible(a, values);
                keep(a, values);
                if (!is_right) {
                    lose();
                }
            }
            if (!is_right) {
                note_end();
                memset(data, 0, n);
                if (done == 0) {
                    memcpy(data, &a.value, std::min(n, sizeof(a.value)));
                }
            }
            if (!send_all(client, buffer.data(), n_head + n)) {
                return false;
            }
            done += n;
            n_head = 0;
        } while (done < a.size);
        return true;
    }

    // The server's end cannot be read any more: the server is lost, unless ggml-rpc has closed the connection.
    void note_end() {
        const std::lock_guard<std::mutex> lock(mutex);
        is_lost = is_lost || !is_closed;
    }
};

rpc_relay::rpc_relay(int fd, size_t n_devices) : connection_(std::make_shared<connection>()) {
    connection & c = *connection_;
    c.devices      = ask_limits(fd, n_devices);
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) {
        throw error(format("no pair of sockets for a ggml-rpc server: %s", strerror(errno)));
    }
    c.client = pair[1];
    c.server = dup(fd);
    if (c.server < 0 || dup2(pair[0], fd) < 0) {
        const std::string reason = strerror(errno);
        close(c.client);
        close(c.server);
        close(pair[0]);
        throw error(format("no socket for a ggml-rpc server: %s", reason.c_str()));
    }
    close(pair[0]);
    for (const int socket : { fd, c.client, c.server }) {
        prepare(socket);
    }
    c.n_threads = 2;
    for (const auto pass : { &connection::pass_requests, &connection::pass_answers }) {
        std::thread([pass, kept = connection_] {
            (*kept.*pass)();
            kept->end_thread();
        }).detach();
    }
}

rpc_relay::~rpc_relay() {
    std::unique_lock<std::mutex> lock(connection_->mutex);
    connection_->changed.wait(lock, [&] { return connection_->n_threads == 0 || connection_->is_held(); });
}

bool rpc_relay::is_lost() const {
    connection &                      c = *connection_;
    const std::lock_guard<std::mutex> lock(c.mutex);
#ifdef POLLRDHUP
    pollfd p{ c.server, POLLRDHUP, 0 };
#else
    pollfd p{ c.server, 0, 0 };
#endif
    c.is_lost = c.is_lost || (c.is_held() && poll(&p, 1, 0) > 0);
    return c.is_lost;
}

bool rpc_relay::is_held() const {
    const std::lock_guard<std::mutex> lock(connection_->mutex);
    return connection_->is_held();
}

} // namespace eagle3

#else

namespace eagle3 {

struct rpc_relay::connection {};

rpc_relay::rpc_relay(int, size_t) {
    throw error("ggml-rpc servers cannot be used on Windows");
}

rpc_relay::~rpc_relay() = default;

bool rpc_relay::is_lost() const {
    return false;
}

bool rpc_relay::is_held() const {
    return false;
}

} // namespace eagle3

#endif
