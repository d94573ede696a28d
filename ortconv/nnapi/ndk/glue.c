#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "android/NeuralNetworks.h"
#include "android/NeuralNetworksExtensions.h"

#define API __attribute__((visibility("default")))

static pthread_once_t started = PTHREAD_ONCE_INIT;
static PyObject* functions;
static PyObject* bridge;

static void end(void) {
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject* done = PyObject_CallMethod(bridge, "end", NULL);
    if (done == NULL) PyErr_Print();
    Py_XDECREF(done);
    PyGILState_Release(state);
}

static int start_python(void) {
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    config.parse_argv = 0;
    config.install_signal_handlers = 0;
    PyStatus status = PyConfig_SetBytesString(&config, &config.program_name, PYTHON);
    if (!PyStatus_Exception(status)) status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    if (PyStatus_Exception(status)) {
        fprintf(stderr, "libneuralnetworks: Python does not start: %s\n", status.err_msg ? status.err_msg : "?");
        return 0;
    }
    return 1;
}

static void load(void) {
    PyObject* path = PySys_GetObject("path");
    PyObject* package = PyUnicode_DecodeFSDefault(PACKAGE);
    if (path != NULL && package != NULL) PyList_Insert(path, 0, package);
    Py_XDECREF(package);
    bridge = PyImport_ImportModule("ortconv.nnapi.ndk.bridge");
    if (bridge != NULL) functions = PyObject_CallMethod(bridge, "start", NULL);
    if (functions != NULL) return;
    if (PyErr_ExceptionMatches(PyExc_SystemExit)) { /* one line, and the program goes on */
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PyErr_NormalizeException(&type, &value, &trace);
        PyObject* text = value ? PyObject_Str(value) : NULL;
        const char* line = text ? PyUnicode_AsUTF8(text) : NULL;
        fprintf(stderr, "%s\n", line ? line : "libneuralnetworks: no start");
        Py_XDECREF(text);
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
    } else {
        PyErr_Print();
    }
}

static void start(void) {
    /* Extension modules look for Python's symbols among the global ones, wherever this library was loaded to. */
    dlopen(LIBPYTHON, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
    if (Py_IsInitialized()) {
        PyGILState_STATE state = PyGILState_Ensure();
        load();
        PyGILState_Release(state);
    } else if (start_python()) {
        load();
        if (functions != NULL) atexit(end);
        PyEval_SaveThread();
    }
}

/* Calls a row. `format` is Py_BuildValue's, a tuple of the arguments. */
static long long call(int row, const char* format, ...) {
    pthread_once(&started, start);
    if (functions == NULL) return ANEURALNETWORKS_OP_FAILED;
    PyGILState_STATE state = PyGILState_Ensure();
    va_list values;
    va_start(values, format);
    PyObject* arguments = Py_VaBuildValue(format, values);
    va_end(values);
    PyObject* answer = arguments ? PyObject_CallObject(PyList_GET_ITEM(functions, row), arguments) : NULL;
    long long result = answer ? (long long)PyLong_AsUnsignedLongLongMask(answer) : ANEURALNETWORKS_OP_FAILED;
    Py_XDECREF(arguments);
    Py_XDECREF(answer);
    if (PyErr_Occurred()) PyErr_Print();
    PyGILState_Release(state);
    return result;
}
