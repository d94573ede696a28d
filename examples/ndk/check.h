/* For the programs of this folder: a call that must succeed, and the operand types that they all use. */
#ifndef CHECK_H
#define CHECK_H

#include <android/NeuralNetworks.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call)                                                              \
    do {                                                                         \
        int code_ = (call);                                                      \
        if (code_ != ANEURALNETWORKS_NO_ERROR) {                                 \
            fprintf(stderr, "%s:%d: %s gives %d\n", __FILE__, __LINE__, #call, code_); \
            exit(1);                                                             \
        }                                                                        \
    } while (0)

#define EXPECT(code, call)                                                       \
    do {                                                                         \
        int code_ = (call);                                                      \
        if (code_ != (code)) {                                                   \
            fprintf(stderr, "%s:%d: %s gives %d, not %d\n", __FILE__, __LINE__, #call, code_, (int)(code)); \
            exit(1);                                                             \
        }                                                                        \
    } while (0)

static inline ANeuralNetworksOperandType tensor(int32_t type, uint32_t rank, const uint32_t* dimensions) {
    ANeuralNetworksOperandType made = {type, rank, dimensions, 0.0f, 0};
    return made;
}

static inline void print_floats(const char* title, const float* values, int count) {
    printf("%s", title);
    for (int i = 0; i < count; i++) printf(" %g", values[i]);
    printf("\n");
}

#endif
