/* What the library answers to NULL, to handles that were freed or are of another kind, and to calls in the wrong order. */
#include "model.h"

int main(void) {
    ANeuralNetworksModel* model = make_model(NULL);
    ANeuralNetworksCompilation *compilation = NULL, *open = NULL;
    ANeuralNetworksExecution* execution = NULL;
    ANeuralNetworksMemory* memory = (ANeuralNetworksMemory*)&model;
    uint32_t index = 0;
    float values[COUNT] = {0};

    EXPECT(ANEURALNETWORKS_UNEXPECTED_NULL, ANeuralNetworksModel_create(NULL));
    EXPECT(ANEURALNETWORKS_UNEXPECTED_NULL, ANeuralNetworksModel_finish(NULL));
    EXPECT(ANEURALNETWORKS_UNEXPECTED_NULL, ANeuralNetworksModel_addOperation(model, ANEURALNETWORKS_RELU, 1, NULL, 1, &index));
    EXPECT(ANEURALNETWORKS_UNEXPECTED_NULL, ANeuralNetworksModel_setOperandValue(model, 0, NULL, 4));
    EXPECT(ANEURALNETWORKS_UNEXPECTED_NULL, ANeuralNetworksCompilation_create(model, NULL));
    EXPECT(ANEURALNETWORKS_BAD_DATA, ANeuralNetworksMemory_createFromFd(4, 1, -1, 0, &memory));
    if (memory != NULL) return 1;
    ANeuralNetworksModel_free(NULL);
    ANeuralNetworksEvent_free(NULL);

    EXPECT(ANEURALNETWORKS_BAD_STATE, ANeuralNetworksModel_finish(model));
    CHECK(ANeuralNetworksCompilation_create(model, &open));
    EXPECT(ANEURALNETWORKS_BAD_STATE, ANeuralNetworksExecution_create(open, &execution));
    if (execution != NULL) return 1;
    compilation = compile(model);
    execution = prepare(compilation, values, values);
    EXPECT(ANEURALNETWORKS_BAD_STATE, ANeuralNetworksExecution_setInput(execution, 0, NULL, values, sizeof values));
    CHECK(ANeuralNetworksExecution_compute(execution));
    EXPECT(ANEURALNETWORKS_BAD_STATE, ANeuralNetworksExecution_compute(execution));

    ANeuralNetworksExecution_free(execution);
    EXPECT(ANEURALNETWORKS_BAD_STATE, ANeuralNetworksExecution_compute(execution));
    ANeuralNetworksExecution_free(execution);
    EXPECT(ANEURALNETWORKS_BAD_STATE, ANeuralNetworksModel_finish((ANeuralNetworksModel*)compilation));
    EXPECT(ANEURALNETWORKS_BAD_STATE, ANeuralNetworksModel_finish((ANeuralNetworksModel*)&index));
    ANeuralNetworksCompilation_free(open);
    ANeuralNetworksCompilation_free(compilation);
    ANeuralNetworksModel_free(model);
    printf("as on Android\n");
    return 0;
}
