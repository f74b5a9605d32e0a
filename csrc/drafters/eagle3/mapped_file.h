#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace eagle3 {

// A file in memory: mapped read-only if the system can, so that all users of a file share its pages, else read.
class mapped_file {
  public:
    explicit mapped_file(const std::string & path);
    ~mapped_file();

    mapped_file(const mapped_file &)             = delete;
    mapped_file & operator=(const mapped_file &) = delete;

    void * data() const { return data_; }
    size_t size() const { return size_; }
    bool   is_mapped() const { return copy_.empty(); }

  private:
    size_t               size_ = 0; // before data_, which sets it
    void *               data_ = nullptr;
    std::vector<uint8_t> copy_;
};

} // namespace eagle3
