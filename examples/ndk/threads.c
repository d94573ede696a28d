/* Several threads, each with executions of its own of one compilation: THREADS TURNS. It prints the peak of memory after the first
   tenth of the turns and after all of them, and the time of one execution. */
#include <pthread.h>
#include <sys/resource.h>
#include <time.h>

#include "model.h"

static ANeuralNetworksCompilation* compilation;
static int turns;

static void* work(void* argument) {
    const float start = (float)*(const int*)argument;
    float input[COUNT], output[COUNT];
    for (int turn = 0; turn < turns; turn++) {
        fill(input, start + (float)(turn % 7));
        ANeuralNetworksExecution* execution = prepare(compilation, input, output);
        CHECK(ANeuralNetworksExecution_compute(execution));
        ANeuralNetworksExecution_free(execution);
        for (int i = 0; i < COUNT; i++)
            if (output[i] != 2 * (input[i] + 1)) exit(2);
    }
    return NULL;
}

static void all(int threads) {
    pthread_t started[16];
    int numbers[16];
    for (int i = 0; i < threads; i++) {
        numbers[i] = i;
        if (pthread_create(&started[i], NULL, work, &numbers[i]) != 0) exit(1);
    }
    for (int i = 0; i < threads; i++) pthread_join(started[i], NULL);
}

static long peak(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

int main(int count, char** arguments) {
    const int threads = count > 1 ? atoi(arguments[1]) : 4, every = count > 2 ? atoi(arguments[2]) : 200;
    struct timespec from, to;
    if (threads < 1 || threads > 16) return 1;
    ANeuralNetworksModel* model = make_model(NULL);
    compilation = compile(model);
    turns = every / 10;
    all(threads);
    const long before = peak();
    clock_gettime(CLOCK_MONOTONIC, &from);
    turns = every - every / 10;
    all(threads);
    clock_gettime(CLOCK_MONOTONIC, &to);
    const double seconds = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
    printf("right, %ld kB then %ld kB, %.1f us each\n", before, peak(), 1e6 * seconds / (turns * threads));
    ANeuralNetworksCompilation_free(compilation);
    ANeuralNetworksModel_free(model);
    return 0;
}
