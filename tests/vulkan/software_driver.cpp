// A library to be loaded between ggml and a driver in software (LD_PRELOAD):
// - ggml spins while it waits for the device, which is the same processor: it sleeps until the fence is there.
// - with KEEP_BUFFERS in the environment, for a driver that fails unused_descriptor.cpp, buffers are never destroyed,
//   so no descriptor has a destroyed one. Their memory is freed as ever, and a handle is a few hundred bytes.
#include <dlfcn.h>
#include <vulkan/vulkan.h>

#include <cstdlib>
#include <cstring>

static void * const loader = dlopen("libvulkan.so.1", RTLD_LAZY);

template <typename T>
static T find(const char * name) {
    return reinterpret_cast<T>(dlsym(loader, name));
}

extern "C" {

void vkDestroyBuffer(VkDevice device, VkBuffer buffer, const VkAllocationCallbacks * callbacks) {
    if (!std::getenv("KEEP_BUFFERS")) {
        find<PFN_vkDestroyBuffer>("vkDestroyBuffer")(device, buffer, callbacks);
    }
}

VkResult vkGetFenceStatus(VkDevice device, VkFence fence) {
    const uint64_t ns_max = 10'000'000;
    const VkResult result = find<PFN_vkWaitForFences>("vkWaitForFences")(device, 1, &fence, VK_TRUE, ns_max);
    return result == VK_TIMEOUT ? VK_NOT_READY : result;
}

PFN_vkVoidFunction vkGetInstanceProcAddr(VkInstance instance, const char * name) {
    if (std::strcmp(name, "vkDestroyBuffer") == 0) {
        return reinterpret_cast<PFN_vkVoidFunction>(vkDestroyBuffer);
    }
    if (std::strcmp(name, "vkGetFenceStatus") == 0) {
        return reinterpret_cast<PFN_vkVoidFunction>(vkGetFenceStatus);
    }
    return find<PFN_vkGetInstanceProcAddr>("vkGetInstanceProcAddr")(instance, name);
}
}
