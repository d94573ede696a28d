/* The same model executed at once, in a burst, behind events, repeatedly, and with an output whose size comes from the input. */
#include <unistd.h>

#include "model.h"

static void at_once(ANeuralNetworksCompilation* compilation) {
    float input[COUNT], output[COUNT];
    fill(input, 0);
    ANeuralNetworksExecution* execution = prepare(compilation, input, output);
    CHECK(ANeuralNetworksExecution_setReusable(execution, true));
    for (int turn = 0; turn < 2; turn++) {
        input[0] = (float)turn;
        CHECK(ANeuralNetworksExecution_compute(execution));
        print_floats("at once", output, 2);
    }
    ANeuralNetworksExecution_free(execution);
}

static void in_a_burst(ANeuralNetworksCompilation* compilation) {
    ANeuralNetworksBurst* burst = NULL;
    CHECK(ANeuralNetworksBurst_create(compilation, &burst));
    for (int turn = 0; turn < 2; turn++) {
        float input[COUNT], output[COUNT];
        fill(input, (float)turn);
        ANeuralNetworksExecution* execution = prepare(compilation, input, output);
        CHECK(ANeuralNetworksExecution_burstCompute(execution, burst));
        print_floats("in a burst", output, 2);
        ANeuralNetworksExecution_free(execution);
    }
    ANeuralNetworksBurst_free(burst);
}

/* The second execution waits for the first one and for a fence of somebody else, here a pipe. */
static void behind_events(ANeuralNetworksCompilation* compilation) {
    float input[COUNT], middle[COUNT], output[COUNT];
    int ends[2], fence = -1;
    fill(input, 0);
    if (pipe(ends) != 0) exit(1);
    ANeuralNetworksEvent *foreign = NULL, *first = NULL, *second = NULL;
    CHECK(ANeuralNetworksEvent_createFromSyncFenceFd(ends[0], &foreign));
    if (write(ends[1], "x", 1) != 1) exit(1);
    ANeuralNetworksExecution* one = prepare(compilation, input, middle);
    ANeuralNetworksExecution* two = prepare(compilation, middle, output);
    CHECK(ANeuralNetworksExecution_startComputeWithDependencies(one, NULL, 0, 0, &first));
    const ANeuralNetworksEvent* const waited[2] = {first, foreign};
    CHECK(ANeuralNetworksExecution_startComputeWithDependencies(two, waited, 2, 0, &second));
    if (ANeuralNetworksEvent_getSyncFenceFd(second, &fence) == ANEURALNETWORKS_NO_ERROR) close(fence);
    CHECK(ANeuralNetworksEvent_wait(second));
    print_floats("behind events", output, 2);
    ANeuralNetworksEvent_free(second);
    ANeuralNetworksEvent_free(first);
    ANeuralNetworksEvent_free(foreign);
    ANeuralNetworksExecution_free(one);
    ANeuralNetworksExecution_free(two);
    close(ends[0]);
    close(ends[1]);
}

static void with_open_size(void) {
    const uint32_t open[1] = {0}, five[1] = {5};
    ANeuralNetworksOperandType any = tensor(ANEURALNETWORKS_TENSOR_FLOAT32, 1, open);
    ANeuralNetworksOperandType given = tensor(ANEURALNETWORKS_TENSOR_FLOAT32, 1, five);
    ANeuralNetworksModel* model = NULL;
    CHECK(ANeuralNetworksModel_create(&model));
    CHECK(ANeuralNetworksModel_addOperand(model, &any));
    CHECK(ANeuralNetworksModel_addOperand(model, &any));
    const uint32_t input[1] = {0}, output[1] = {1};
    CHECK(ANeuralNetworksModel_addOperation(model, ANEURALNETWORKS_FLOOR, 1, input, 1, output));
    CHECK(ANeuralNetworksModel_identifyInputsAndOutputs(model, 1, input, 1, output));
    CHECK(ANeuralNetworksModel_finish(model));
    ANeuralNetworksCompilation* compilation = compile(model);

    const float values[5] = {0.5f, 1.5f, 2.5f, 3.5f, 4.5f};
    float results[5];
    for (uint32_t room = 4; room <= 5; room++) {
        ANeuralNetworksExecution* execution = NULL;
        uint32_t rank = 0, dimensions[1] = {0};
        CHECK(ANeuralNetworksExecution_create(compilation, &execution));
        CHECK(ANeuralNetworksExecution_setInput(execution, 0, &given, values, sizeof values));
        CHECK(ANeuralNetworksExecution_setOutput(execution, 0, NULL, results, sizeof(float) * room));
        int code = ANeuralNetworksExecution_compute(execution);
        EXPECT(code, ANeuralNetworksExecution_getOutputOperandRank(execution, 0, &rank));
        EXPECT(code, ANeuralNetworksExecution_getOutputOperandDimensions(execution, 0, dimensions));
        printf("room for %u: code %d, rank %u, needs %u\n", room, code, rank, dimensions[0]);
        ANeuralNetworksExecution_free(execution);
    }
    print_floats("open size", results, 5);
    ANeuralNetworksCompilation_free(compilation);
    ANeuralNetworksModel_free(model);
}

int main(void) {
    ANeuralNetworksModel* model = make_model(NULL);
    ANeuralNetworksCompilation* compilation = compile(model);
    at_once(compilation);
    in_a_burst(compilation);
    behind_events(compilation);
    with_open_size();
    ANeuralNetworksCompilation_free(compilation);
    ANeuralNetworksModel_free(model);
    return 0;
}
