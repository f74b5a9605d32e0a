#include "drafters/eagle3/mapped_file.h"

#include "error.h"
#include "system.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>
#else
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

namespace eagle3 {

namespace {

#ifdef _WIN32
// All of a file; nullptr if it cannot be mapped
void * map_file(const std::string & path, size_t & size) {
    const HANDLE file = CreateFileW(path_of(path).c_str(), GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, nullptr,
                                    OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr);
    if (file == INVALID_HANDLE_VALUE) {
        throw model_file_error(format("'%s': cannot be opened: error %lu of Windows", path.c_str(), GetLastError()));
    }
    LARGE_INTEGER n_bytes = {};
    GetFileSizeEx(file, &n_bytes);
    size              = static_cast<size_t>(n_bytes.QuadPart);
    const HANDLE map  = CreateFileMappingW(file, nullptr, PAGE_READONLY, 0, 0, nullptr);
    void *       data = map ? MapViewOfFile(map, FILE_MAP_READ, 0, 0, 0) : nullptr;
    if (map) {
        CloseHandle(map); // the view keeps it
    }
    CloseHandle(file);
    return data;
}

void unmap_file(void * data, size_t) {
    UnmapViewOfFile(data);
}
#else
// All of a file; nullptr if it cannot be mapped
void * map_file(const std::string & path, size_t & size) {
    const int   fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat st = {};
    if (fd < 0 || fstat(fd, &st) != 0) {
        const std::string reason = strerror(errno);
        if (fd >= 0) {
            close(fd);
        }
        throw model_file_error(format("'%s': cannot be opened: %s", path.c_str(), reason.c_str()));
    }
    size        = static_cast<size_t>(st.st_size);
    void * data = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    return data == MAP_FAILED ? nullptr : data;
}

void unmap_file(void * data, size_t size) {
    munmap(data, size);
}
#endif

} // namespace

mapped_file::mapped_file(const std::string & path) : data_(map_file(path, size_)) {
    if (data_) {
        return;
    }
    std::ifstream file(path_of(path), std::ios::binary | std::ios::ate);
    size_ = file ? static_cast<size_t>(file.tellg()) : 0;
    copy_.resize(size_);
    if (!file.seekg(0) || !file.read(reinterpret_cast<char *>(copy_.data()), static_cast<std::streamsize>(size_))) {
        throw model_file_error(format("'%s': cannot be read", path.c_str()));
    }
    data_ = copy_.data();
}

mapped_file::~mapped_file() {
    if (is_mapped() && data_) {
        unmap_file(data_, size_);
    }
}

} // namespace eagle3
