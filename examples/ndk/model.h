/* The model of the guide's third figure: (trained1 + input) * trained2, all of them 3 x 4. */
#ifndef MODEL_H
#define MODEL_H

#include "check.h"

enum { ROWS = 3, COLUMNS = 4, COUNT = ROWS * COLUMNS };

/* `trained` is a memory with both constant tensors; where it is NULL, they are 1 and 2 throughout. */
static inline ANeuralNetworksModel* make_model(ANeuralNetworksMemory* trained) {
    static const uint32_t dimensions[2] = {ROWS, COLUMNS};
    static float ones[COUNT], twos[COUNT];
    ANeuralNetworksOperandType matrix = tensor(ANEURALNETWORKS_TENSOR_FLOAT32, 2, dimensions);
    ANeuralNetworksOperandType scalar = tensor(ANEURALNETWORKS_INT32, 0, NULL);
    const ANeuralNetworksOperandType* operands[7] = {&matrix, &matrix, &scalar, &matrix, &matrix, &scalar, &matrix};
    const size_t size = sizeof(float) * COUNT;
    const int32_t none = ANEURALNETWORKS_FUSED_NONE;

    ANeuralNetworksModel* model = NULL;
    CHECK(ANeuralNetworksModel_create(&model));
    for (int i = 0; i < 7; i++) CHECK(ANeuralNetworksModel_addOperand(model, operands[i]));

    if (trained != NULL) {
        CHECK(ANeuralNetworksModel_setOperandValueFromMemory(model, 1, trained, 0, size));
        CHECK(ANeuralNetworksModel_setOperandValueFromMemory(model, 3, trained, size, size));
    } else {
        for (int i = 0; i < COUNT; i++) ones[i] = 1, twos[i] = 2;
        CHECK(ANeuralNetworksModel_setOperandValue(model, 1, ones, size));
        CHECK(ANeuralNetworksModel_setOperandValue(model, 3, twos, size));
    }
    CHECK(ANeuralNetworksModel_setOperandValue(model, 2, &none, sizeof none));
    CHECK(ANeuralNetworksModel_setOperandValue(model, 5, &none, sizeof none));

    const uint32_t add_inputs[3] = {1, 0, 2}, add_outputs[1] = {4};
    const uint32_t mul_inputs[3] = {3, 4, 5}, mul_outputs[1] = {6};
    CHECK(ANeuralNetworksModel_addOperation(model, ANEURALNETWORKS_ADD, 3, add_inputs, 1, add_outputs));
    CHECK(ANeuralNetworksModel_addOperation(model, ANEURALNETWORKS_MUL, 3, mul_inputs, 1, mul_outputs));

    const uint32_t inputs[1] = {0}, outputs[1] = {6};
    CHECK(ANeuralNetworksModel_identifyInputsAndOutputs(model, 1, inputs, 1, outputs));
    CHECK(ANeuralNetworksModel_relaxComputationFloat32toFloat16(model, true));
    CHECK(ANeuralNetworksModel_finish(model));
    return model;
}

/* A compilation for every device, with the CPU behind them. */
static inline ANeuralNetworksCompilation* compile(ANeuralNetworksModel* model) {
    ANeuralNetworksCompilation* compilation = NULL;
    CHECK(ANeuralNetworksCompilation_create(model, &compilation));
    CHECK(ANeuralNetworksCompilation_finish(compilation));
    return compilation;
}

/* An execution with its only input and output set. */
static inline ANeuralNetworksExecution* prepare(ANeuralNetworksCompilation* compilation, const float* input, float* output) {
    ANeuralNetworksExecution* execution = NULL;
    CHECK(ANeuralNetworksExecution_create(compilation, &execution));
    CHECK(ANeuralNetworksExecution_setInput(execution, 0, NULL, input, sizeof(float) * COUNT));
    CHECK(ANeuralNetworksExecution_setOutput(execution, 0, NULL, output, sizeof(float) * COUNT));
    return execution;
}

static inline void fill(float* values, float start) {
    for (int i = 0; i < COUNT; i++) values[i] = start + i;
}

#endif
