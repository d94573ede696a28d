/* Which devices there are, what they take of a model, and a compilation for one of them with times, cache and limits. */
#include <inttypes.h>
#include <string.h>

#include "model.h"

static ANeuralNetworksDevice* list(void) {
    uint32_t count = 0;
    ANeuralNetworksDevice* first = NULL;
    CHECK(ANeuralNetworks_getDeviceCount(&count));
    for (uint32_t i = 0; i < count; i++) {
        ANeuralNetworksDevice* device = NULL;
        const char *name = NULL, *version = NULL;
        int32_t type = 0;
        int64_t level = 0;
        CHECK(ANeuralNetworks_getDevice(i, &device));
        CHECK(ANeuralNetworksDevice_getName(device, &name));
        CHECK(ANeuralNetworksDevice_getVersion(device, &version));
        CHECK(ANeuralNetworksDevice_getType(device, &type));
        CHECK(ANeuralNetworksDevice_getFeatureLevel(device, &level));
        CHECK(ANeuralNetworksDevice_wait(device));
        printf("device %s %s type %d level %" PRId64 "\n", name, version, type, level);
        if (first == NULL) first = device;
    }
    return first;
}

/* The argument, if there is one, is a folder in which devices may cache the compilation. */
int main(int count, char** arguments) {
    ANeuralNetworksDevice* device = list();
    const ANeuralNetworksDevice* devices[1] = {device};
    ANeuralNetworksModel* model = make_model(NULL);
    bool supported[2] = {false, false};
    CHECK(ANeuralNetworksModel_getSupportedOperationsForDevices(model, devices, 1, supported));
    printf("takes ADD %d MUL %d\n", supported[0], supported[1]);
    if (!supported[0] || !supported[1]) return 0;

    uint8_t token[ANEURALNETWORKS_BYTE_SIZE_OF_CACHE_TOKEN];
    memset(token, 7, sizeof token);
    ANeuralNetworksCompilation* compilation = NULL;
    CHECK(ANeuralNetworksCompilation_createForDevices(model, devices, 1, &compilation));
    if (count > 1) CHECK(ANeuralNetworksCompilation_setCaching(compilation, arguments[1], token));
    CHECK(ANeuralNetworksCompilation_setPriority(compilation, ANEURALNETWORKS_PRIORITY_HIGH));
    CHECK(ANeuralNetworksCompilation_setTimeout(compilation, 10000000000));
    CHECK(ANeuralNetworksCompilation_finish(compilation));
    uint32_t alignment = 0, padding = 0;
    CHECK(ANeuralNetworksCompilation_getPreferredMemoryAlignmentForInput(compilation, 0, &alignment));
    CHECK(ANeuralNetworksCompilation_getPreferredMemoryPaddingForOutput(compilation, 0, &padding));
    printf("alignment %u padding %u\n", alignment, padding);

    float input[COUNT], output[COUNT];
    uint64_t hardware = 0, driver = 0;
    fill(input, 0);
    ANeuralNetworksExecution* execution = prepare(compilation, input, output);
    CHECK(ANeuralNetworksExecution_setMeasureTiming(execution, true));
    CHECK(ANeuralNetworksExecution_setTimeout(execution, 10000000000));
    CHECK(ANeuralNetworksExecution_compute(execution));
    CHECK(ANeuralNetworksExecution_getDuration(execution, ANEURALNETWORKS_DURATION_ON_HARDWARE, &hardware));
    CHECK(ANeuralNetworksExecution_getDuration(execution, ANEURALNETWORKS_DURATION_IN_DRIVER, &driver));
    printf("measured %s\n", hardware == UINT64_MAX ? "no" : hardware <= driver ? "yes" : "wrong");
    print_floats("result", output, COUNT);

    ANeuralNetworksExecution_free(execution);
    ANeuralNetworksCompilation_free(compilation);
    ANeuralNetworksModel_free(model);
    return 0;
}
