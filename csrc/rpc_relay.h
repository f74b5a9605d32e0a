#pragma once

#include <cstddef>
#include <memory>

namespace eagle3 {

// A relay between ggml-rpc and its server. ggml-rpc ends the process, from a thread of its own, when a server is lost
// or answers unexpectedly. The relay then answers in the server's place: there is no memory, and everything that is
// read is zeros. Code that computed on the server must call is_lost() before it uses results.
class rpc_relay {
  public:
    // fd: ggml-rpc's connected socket, which must be idle. Asks the server for the limits of its devices, and makes the
    // socket one end of a pair, whose other end is read here. Throws if the answers are impossible.
    rpc_relay(int fd, size_t n_devices);
    // The relay goes on as long as ggml-rpc has its socket open; if that is closed, this waits until the server's is
    // too.
    ~rpc_relay();

    rpc_relay(const rpc_relay &)             = delete;
    rpc_relay & operator=(const rpc_relay &) = delete;

    bool is_lost() const;

    // Does ggml-rpc have its socket open?
    bool is_held() const;

  private:
    struct connection;
    std::shared_ptr<connection> connection_;
};

} // namespace eagle3
