// To be loaded before libvulkan (LD_PRELOAD), on a driver that fails unused_descriptor.cpp: buffers are never
// destroyed, so that no descriptor is of one that was. Their memory is freed as ever, and a handle is a few hundred
// bytes.
#include <dlfcn.h>
#include <vulkan/vulkan.h>

#include <cstring>

extern "C" {

void vkDestroyBuffer(VkDevice, VkBuffer, const VkAllocationCallbacks *) {}

PFN_vkVoidFunction vkGetInstanceProcAddr(VkInstance instance, const char * name) {
    if (std::strcmp(name, "vkDestroyBuffer") == 0) {
        return reinterpret_cast<PFN_vkVoidFunction>(vkDestroyBuffer);
    }
    static const auto next = reinterpret_cast<PFN_vkGetInstanceProcAddr>(
        dlsym(dlopen("libvulkan.so.1", RTLD_LAZY), "vkGetInstanceProcAddr"));
    return next(instance, name);
}
}
