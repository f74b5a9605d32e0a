#pragma once

#include <cstddef>
#include <memory>

namespace eagle3 {

// Stands between ggml-rpc and its server. ggml-rpc ends the process, from a thread of its own, when a server is lost or
// answers with what it did not expect. From then on this answers in the server's place: memory cannot be had, and what
// is read is zeros. Who computed on the server asks is_lost() before it uses what came.
class rpc_relay {
  public:
    // fd: ggml-rpc's connected socket, on which nothing is being said. The server is asked for the limits of its
    // devices, and the socket becomes one end of a pair, whose other end is read here. Throws if answers cannot be.
    rpc_relay(int fd, size_t n_devices);
    // It goes on as long as ggml-rpc has its socket open; if that is closed, this waits until the server's is too.
    ~rpc_relay();

    rpc_relay(const rpc_relay &)             = delete;
    rpc_relay & operator=(const rpc_relay &) = delete;

    bool is_lost() const;

    // whether ggml-rpc has its socket open
    bool is_held() const;

  private:
    struct connection;
    std::shared_ptr<connection> connection_;
};

} // namespace eagle3
