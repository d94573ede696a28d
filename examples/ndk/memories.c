/* Memory that a device keeps between executions, and a hardware buffer as input and output. */
#include <android/hardware_buffer.h>

#include "model.h"

static void in_a_domain(ANeuralNetworksCompilation* compilation) {
    const uint32_t dimensions[2] = {ROWS, COLUMNS};
    ANeuralNetworksMemoryDesc* desc = NULL;
    ANeuralNetworksMemory* opaque = NULL;
    CHECK(ANeuralNetworksMemoryDesc_create(&desc));
    CHECK(ANeuralNetworksMemoryDesc_addInputRole(desc, compilation, 0, 1.0f));
    CHECK(ANeuralNetworksMemoryDesc_addOutputRole(desc, compilation, 0, 0.5f));
    CHECK(ANeuralNetworksMemoryDesc_setDimensions(desc, 2, dimensions));
    CHECK(ANeuralNetworksMemoryDesc_finish(desc));
    CHECK(ANeuralNetworksMemory_createFromDesc(desc, &opaque));
    ANeuralNetworksMemoryDesc_free(desc);

    float input[COUNT], output[COUNT];
    fill(input, 0);
    ANeuralNetworksExecution *first = NULL, *second = NULL;
    CHECK(ANeuralNetworksExecution_create(compilation, &first));
    CHECK(ANeuralNetworksExecution_setInput(first, 0, NULL, input, sizeof input));
    CHECK(ANeuralNetworksExecution_setOutputFromMemory(first, 0, NULL, opaque, 0, 0));
    CHECK(ANeuralNetworksExecution_compute(first));
    CHECK(ANeuralNetworksExecution_create(compilation, &second));
    CHECK(ANeuralNetworksExecution_setInputFromMemory(second, 0, NULL, opaque, 0, 0));
    CHECK(ANeuralNetworksExecution_setOutput(second, 0, NULL, output, sizeof output));
    CHECK(ANeuralNetworksExecution_compute(second));
    print_floats("twice", output, 4);
    ANeuralNetworksExecution_free(first);
    ANeuralNetworksExecution_free(second);
    ANeuralNetworksMemory_free(opaque);
}

static void in_a_hardware_buffer(ANeuralNetworksCompilation* compilation) {
    const uint32_t size = sizeof(float) * COUNT;
    AHardwareBuffer_Desc desc = {
        .width = 2 * size,
        .height = 1,
        .layers = 1,
        .format = AHARDWAREBUFFER_FORMAT_BLOB,
        .usage = AHARDWAREBUFFER_USAGE_CPU_READ_OFTEN | AHARDWAREBUFFER_USAGE_CPU_WRITE_OFTEN,
    };
    AHardwareBuffer* buffer = NULL;
    ANeuralNetworksMemory* memory = NULL;
    void* address = NULL;
    CHECK(AHardwareBuffer_allocate(&desc, &buffer));
    CHECK(ANeuralNetworksMemory_createFromAHardwareBuffer(buffer, &memory));
    CHECK(AHardwareBuffer_lock(buffer, AHARDWAREBUFFER_USAGE_CPU_WRITE_OFTEN, -1, NULL, &address));
    fill(address, 10);
    CHECK(AHardwareBuffer_unlock(buffer, NULL));

    ANeuralNetworksExecution* execution = NULL;
    CHECK(ANeuralNetworksExecution_create(compilation, &execution));
    CHECK(ANeuralNetworksExecution_setInputFromMemory(execution, 0, NULL, memory, 0, size));
    CHECK(ANeuralNetworksExecution_setOutputFromMemory(execution, 0, NULL, memory, size, size));
    CHECK(ANeuralNetworksExecution_compute(execution));
    CHECK(AHardwareBuffer_lock(buffer, AHARDWAREBUFFER_USAGE_CPU_READ_OFTEN, -1, NULL, &address));
    print_floats("hardware buffer", (const float*)address + COUNT, 4);
    CHECK(AHardwareBuffer_unlock(buffer, NULL));
    AHardwareBuffer_describe(buffer, &desc);
    printf("stride %u\n", desc.stride);
    ANeuralNetworksExecution_free(execution);
    ANeuralNetworksMemory_free(memory);
    AHardwareBuffer_release(buffer);
}

int main(void) {
    ANeuralNetworksModel* model = make_model(NULL);
    ANeuralNetworksCompilation* compilation = compile(model);
    in_a_domain(compilation);
    in_a_hardware_buffer(compilation);
    ANeuralNetworksCompilation_free(compilation);
    ANeuralNetworksModel_free(model);
    return 0;
}
