/* Operators of the domain "test.ops" for onnxruntime: Negate, of float, Same, of any type, and Abort, which ends the process.

What is declared here is the part of onnxruntime's C interface that they need; api[N] is the N-th function of OrtApi, whose order
never changes. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ADD_DOMAIN = 28, ADD_OPERATOR = 27, CREATE_DOMAIN = 26, DATA = 51, TYPE = 60, RANK = 61, DIMENSIONS = 62, SIZE = 64,
       TYPE_AND_SHAPE = 65, INPUT = 90, OUTPUT = 91, VERSION = 13, FLOAT = 1, MOST_DIMENSIONS = 8 };

typedef void *(*Function)();

typedef struct Operator {
    uint32_t version;
    void *(*create)(const struct Operator *, const Function *, const void *);
    const char *(*name)(const struct Operator *);
    const char *(*provider)(const struct Operator *);
    int (*input_type)(const struct Operator *, size_t);
    size_t (*inputs)(const struct Operator *);
    int (*output_type)(const struct Operator *, size_t);
    size_t (*outputs)(const struct Operator *);
    void (*compute)(void *, void *);
    void (*destroy)(void *);
    int (*input_kind)(const struct Operator *, size_t);
    int (*output_kind)(const struct Operator *, size_t);
    int (*memory)(const struct Operator *, size_t);
    const char *label;
    int type;
} Operator;

typedef struct {
    const Function *(*get)(uint32_t);
    const char *(*version)(void);
} Base;

static const Function *api;

static void *create(const Operator *op, const Function *given, const void *info) { (void)given, (void)info; return (void *)op; }
static const char *name(const Operator *op) { return op->label; }
static const char *provider(const Operator *op) { (void)op; return NULL; }
static int type(const Operator *op, size_t i) { (void)i; return op->type; }
static size_t one(const Operator *op) { (void)op; return 1; }
static int zero(const Operator *op, size_t i) { (void)op, (void)i; return 0; }
static void destroy(void *kernel) { (void)kernel; }

static void compute(void *kernel, void *context) {
    void *x = NULL, *y = NULL, *shape = NULL, *from = NULL, *to = NULL;
    int64_t dims[MOST_DIMENSIONS];
    size_t rank = 0, size = 0;
    int element = 0;
    api[INPUT](context, (size_t)0, &x);
    api[TYPE_AND_SHAPE](x, &shape);
    api[RANK](shape, &rank);
    api[DIMENSIONS](shape, dims, rank);
    api[SIZE](shape, &size);
    api[TYPE](shape, &element);
    api[OUTPUT](context, (size_t)0, dims, rank, &y);
    api[DATA](x, &from);
    api[DATA](y, &to);
    if (((Operator *)kernel)->type == FLOAT)
        for (size_t i = 0; i < size; i++) ((float *)to)[i] = -((float *)from)[i];
    else
        memcpy(to, from, size * (element == FLOAT ? 4 : 8));
}

static void stop(void *kernel, void *context) { (void)kernel, (void)context, abort(); }

static const Operator operators[] = {
    {VERSION, create, name, provider, type, one, type, one, compute, destroy, zero, zero, zero, "Negate", FLOAT},
    {VERSION, create, name, provider, type, one, type, one, compute, destroy, zero, zero, zero, "Same", 0},
    {VERSION, create, name, provider, type, one, type, one, stop, destroy, zero, zero, zero, "Abort", FLOAT},
};

void *RegisterCustomOps(void *options, const Base *base) {
    void *domain = NULL;
    api = base->get(VERSION);
    api[CREATE_DOMAIN]("test.ops", &domain);
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) api[ADD_OPERATOR](domain, &operators[i]);
    return api[ADD_DOMAIN](options, domain);
}
