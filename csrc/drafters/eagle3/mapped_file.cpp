#include "drafters/eagle3/mapped_file.h"

#include "error.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#if defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#define EAGLE3_HAVE_MMAP
#endif

namespace eagle3 {

mapped_file::mapped_file(const std::string & path) {
#ifdef EAGLE3_HAVE_MMAP
    const int   fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat st = {};
    if (fd < 0 || fstat(fd, &st) != 0) {
        const std::string reason = strerror(errno);
        if (fd >= 0) {
            close(fd);
        }
        throw model_file_error(format("'%s': cannot be opened: %s", path.c_str(), reason.c_str()));
    }
    size_ = static_cast<size_t>(st.st_size);
    data_ = mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (data_ != MAP_FAILED) {
        return;
    }
    data_ = nullptr;
#endif
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    size_ = file ? static_cast<size_t>(file.tellg()) : 0;
    copy_.resize(size_);
    if (!file.seekg(0) || !file.read(reinterpret_cast<char *>(copy_.data()), static_cast<std::streamsize>(size_))) {
        throw model_file_error(format("'%s': cannot be read", path.c_str()));
    }
    data_ = copy_.data();
}

mapped_file::~mapped_file() {
#ifdef EAGLE3_HAVE_MMAP
    if (is_mapped() && data_) {
        munmap(data_, size_);
    }
#endif
}

} // namespace eagle3
