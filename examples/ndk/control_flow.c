/* IF with two models: x + y where the condition holds, else x * y. */
#include "check.h"

static const uint32_t two[1] = {2}, one[1] = {1};

static ANeuralNetworksModel* branch(ANeuralNetworksOperationType operation) {
    ANeuralNetworksOperandType vector = tensor(ANEURALNETWORKS_TENSOR_FLOAT32, 1, two);
    ANeuralNetworksOperandType scalar = tensor(ANEURALNETWORKS_INT32, 0, NULL);
    const int32_t none = ANEURALNETWORKS_FUSED_NONE;
    ANeuralNetworksModel* model = NULL;
    CHECK(ANeuralNetworksModel_create(&model));
    CHECK(ANeuralNetworksModel_addOperand(model, &vector));
    CHECK(ANeuralNetworksModel_addOperand(model, &vector));
    CHECK(ANeuralNetworksModel_addOperand(model, &scalar));
    CHECK(ANeuralNetworksModel_addOperand(model, &vector));
    CHECK(ANeuralNetworksModel_setOperandValue(model, 2, &none, sizeof none));
    const uint32_t inputs[3] = {0, 1, 2}, outputs[1] = {3};
    CHECK(ANeuralNetworksModel_addOperation(model, operation, 3, inputs, 1, outputs));
    CHECK(ANeuralNetworksModel_identifyInputsAndOutputs(model, 2, inputs, 1, outputs));
    CHECK(ANeuralNetworksModel_finish(model));
    return model;
}

int main(void) {
    enum { CONDITION, THEN, ELSE, X, Y, RESULT };
    ANeuralNetworksModel *then_model = branch(ANEURALNETWORKS_ADD), *else_model = branch(ANEURALNETWORKS_MUL);
    ANeuralNetworksOperandType condition = tensor(ANEURALNETWORKS_TENSOR_BOOL8, 1, one);
    ANeuralNetworksOperandType model_type = tensor(ANEURALNETWORKS_MODEL, 0, NULL);
    ANeuralNetworksOperandType vector = tensor(ANEURALNETWORKS_TENSOR_FLOAT32, 1, two);
    const ANeuralNetworksOperandType* operands[6] = {&condition, &model_type, &model_type, &vector, &vector, &vector};

    ANeuralNetworksModel* model = NULL;
    CHECK(ANeuralNetworksModel_create(&model));
    for (int i = 0; i < 6; i++) CHECK(ANeuralNetworksModel_addOperand(model, operands[i]));
    CHECK(ANeuralNetworksModel_setOperandValueFromModel(model, THEN, then_model));
    CHECK(ANeuralNetworksModel_setOperandValueFromModel(model, ELSE, else_model));
    const uint32_t inputs[5] = {CONDITION, THEN, ELSE, X, Y}, outputs[1] = {RESULT};
    CHECK(ANeuralNetworksModel_addOperation(model, ANEURALNETWORKS_IF, 5, inputs, 1, outputs));
    const uint32_t model_inputs[3] = {CONDITION, X, Y};
    CHECK(ANeuralNetworksModel_identifyInputsAndOutputs(model, 3, model_inputs, 1, outputs));
    CHECK(ANeuralNetworksModel_finish(model));

    ANeuralNetworksCompilation* compilation = NULL;
    CHECK(ANeuralNetworksCompilation_create(model, &compilation));
    CHECK(ANeuralNetworksCompilation_finish(compilation));
    for (int turn = 1; turn >= 0; turn--) {
        const bool holds = turn;
        const float x[2] = {3, 4}, y[2] = {5, 6};
        float result[2];
        ANeuralNetworksExecution* execution = NULL;
        CHECK(ANeuralNetworksExecution_create(compilation, &execution));
        CHECK(ANeuralNetworksExecution_setInput(execution, 0, NULL, &holds, sizeof holds));
        CHECK(ANeuralNetworksExecution_setInput(execution, 1, NULL, x, sizeof x));
        CHECK(ANeuralNetworksExecution_setInput(execution, 2, NULL, y, sizeof y));
        CHECK(ANeuralNetworksExecution_setOutput(execution, 0, NULL, result, sizeof result));
        CHECK(ANeuralNetworksExecution_setLoopTimeout(execution, ANeuralNetworks_getDefaultLoopTimeout()));
        CHECK(ANeuralNetworksExecution_compute(execution));
        print_floats(holds ? "then" : "else", result, 2);
        ANeuralNetworksExecution_free(execution);
    }
    ANeuralNetworksCompilation_free(compilation);
    ANeuralNetworksModel_free(model);
    ANeuralNetworksModel_free(then_model);
    ANeuralNetworksModel_free(else_model);
    return 0;
}
