/* From trained data in a file to two results: build, compile, execute in the background, clean up. */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model.h"

static void run(ANeuralNetworksCompilation* compilation, float start) {
    float input[COUNT], output[COUNT];
    fill(input, start);
    ANeuralNetworksExecution* execution = prepare(compilation, input, output);
    ANeuralNetworksEvent* done = NULL;
    CHECK(ANeuralNetworksExecution_startCompute(execution, &done));
    CHECK(ANeuralNetworksEvent_wait(done));
    ANeuralNetworksEvent_free(done);
    ANeuralNetworksExecution_free(execution);
    print_floats("result", output, COUNT);
}

int main(void) {
    char path[] = "/tmp/training_data.XXXXXX";
    float trained[2 * COUNT];
    int fd = mkstemp(path);
    if (fd < 0) return 1;
    unlink(path);
    for (int i = 0; i < COUNT; i++) trained[i] = 0.5f, trained[COUNT + i] = (float)(i % 3);
    if (write(fd, trained, sizeof trained) != sizeof trained) return 1;

    ANeuralNetworksMemory* memory = NULL;
    CHECK(ANeuralNetworksMemory_createFromFd(sizeof trained, PROT_READ, fd, 0, &memory));
    ANeuralNetworksModel* model = make_model(memory);
    ANeuralNetworksCompilation* compilation = NULL;
    CHECK(ANeuralNetworksCompilation_create(model, &compilation));
    CHECK(ANeuralNetworksCompilation_setPreference(compilation, ANEURALNETWORKS_PREFER_LOW_POWER));
    CHECK(ANeuralNetworksCompilation_finish(compilation));
    run(compilation, 0);
    run(compilation, 100);

    ANeuralNetworksCompilation_free(compilation);
    ANeuralNetworksModel_free(model);
    ANeuralNetworksMemory_free(memory);
    close(fd);
    return 0;
}
