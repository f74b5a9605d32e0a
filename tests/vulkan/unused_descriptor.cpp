// Whether a driver lets the descriptors alone that a shader does not use: Vulkan wants those valid that the pipeline
// uses statically, and no others (VUID-vkCmdDispatch-None-08114). ggml has one layout of 12 buffers for all its
// shaders, so that most sets have descriptors of buffers that were destroyed since. Mesa 22.3 binds these too, and
// crashes.
//
//     unused_descriptor SHADER    of unused_descriptor.comp; prints the driver, and ends with 0 if all is right
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <vulkan/vulkan.hpp>

struct buffer {
    vk::Buffer       handle;
    vk::DeviceMemory memory;
};

int main(int, char ** argv) {
    std::ifstream           file(argv[1], std::ios::binary);
    const std::vector<char> code{ std::istreambuf_iterator<char>(file), {} };

    const vk::ApplicationInfo application("", 0, "", 0, VK_API_VERSION_1_2);
    const vk::Instance        instance = vk::createInstance({ {}, &application });
    const vk::PhysicalDevice  physical = instance.enumeratePhysicalDevices().front();
    const auto names = physical.getProperties2<vk::PhysicalDeviceProperties2, vk::PhysicalDeviceDriverProperties>();
    std::cout << names.get<vk::PhysicalDeviceProperties2>().properties.deviceName << ", "
              << names.get<vk::PhysicalDeviceDriverProperties>().driverInfo << std::endl;
    const float                     priority = 1.0f;
    const vk::DeviceQueueCreateInfo queues({}, 0, 1, &priority);
    const vk::Device                device = physical.createDevice({ {}, queues });
    const vk::Queue                 queue  = device.getQueue(0, 0);

    const vk::MemoryPropertyFlags wanted =
        vk::MemoryPropertyFlagBits::eHostVisible | vk::MemoryPropertyFlagBits::eHostCoherent;
    const auto memory = physical.getMemoryProperties();
    uint32_t   type   = 0;
    while ((memory.memoryTypes[type].propertyFlags & wanted) != wanted) {
        ++type; // every device has one
    }

    const auto make = [&] {
        const vk::Buffer handle       = device.createBuffer({ {}, 256, vk::BufferUsageFlagBits::eStorageBuffer });
        const auto       requirements = device.getBufferMemoryRequirements(handle);
        const buffer     result       = { handle, device.allocateMemory({ requirements.size, type }) };
        device.bindBufferMemory(handle, result.memory, 0);
        return result;
    };
    const buffer  in = make(), out = make();
    float * const a = static_cast<float *>(device.mapMemory(in.memory, 0, VK_WHOLE_SIZE));
    float * const b = static_cast<float *>(device.mapMemory(out.memory, 0, VK_WHOLE_SIZE));

    std::vector<vk::DescriptorSetLayoutBinding> bindings;
    for (uint32_t i = 0; i < 3; ++i) {
        bindings.emplace_back(i, vk::DescriptorType::eStorageBuffer, 1, vk::ShaderStageFlagBits::eCompute);
    }
    const vk::DescriptorSetLayout layout          = device.createDescriptorSetLayout({ {}, bindings });
    const vk::PipelineLayout      pipeline_layout = device.createPipelineLayout({ {}, layout });
    const vk::ShaderModule        shader =
        device.createShaderModule({ {}, code.size(), reinterpret_cast<const uint32_t *>(code.data()) });
    const vk::PipelineShaderStageCreateInfo stage({}, vk::ShaderStageFlagBits::eCompute, shader, "main");
    const vk::Pipeline pipeline = device.createComputePipeline(nullptr, { {}, stage, pipeline_layout }).value;

    const vk::DescriptorPoolSize size(vk::DescriptorType::eStorageBuffer, 3);
    const vk::DescriptorPool     sets    = device.createDescriptorPool({ {}, 1, size });
    const vk::DescriptorSet      set     = device.allocateDescriptorSets({ sets, layout }).front();
    const vk::CommandPool        pool    = device.createCommandPool({});
    const vk::CommandBuffer      command = device.allocateCommandBuffers({ pool, {}, 1 }).front();

    for (int i = 1; i <= 20; ++i) {
        const buffer                                unused  = make();
        const std::vector<vk::DescriptorBufferInfo> buffers = { { in.handle, 0, VK_WHOLE_SIZE },
                                                                { out.handle, 0, VK_WHOLE_SIZE },
                                                                { unused.handle, 0, VK_WHOLE_SIZE } };
        device.updateDescriptorSets(vk::WriteDescriptorSet(set, 0, 0, vk::DescriptorType::eStorageBuffer, {}, buffers),
                                    {});
        device.destroyBuffer(unused.handle);
        device.freeMemory(unused.memory);
        for (size_t n = 16; n <= 1024; n += 16) { // what was freed is used for something else
            for (int k = 0; k < 8; ++k) {
                std::memset(std::malloc(n), 0, n);
            }
        }

        device.resetCommandPool(pool);
        command.begin(vk::CommandBufferBeginInfo());
        command.bindPipeline(vk::PipelineBindPoint::eCompute, pipeline);
        command.bindDescriptorSets(vk::PipelineBindPoint::eCompute, pipeline_layout, 0, set, {});
        command.dispatch(1, 1, 1);
        command.end();
        a[0] = static_cast<float>(i);
        queue.submit(vk::SubmitInfo({}, {}, command));
        queue.waitIdle();
        if (b[0] != 2.0f * a[0]) {
            std::cout << "expected " << 2.0f * a[0] << ", found " << b[0] << std::endl;
            return 1;
        }
    }
    std::_Exit(0);
}
