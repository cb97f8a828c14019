/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays of numpy in C without numpy's headers: its array interface, version 3, and what the extension's files share.
 */
#ifndef QDQTOOL_ARRAYS_H
#define QDQTOOL_ARRAYS_H

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stddef.h>
#include <stdint.h>

/* What `__array_struct__` points to. */
typedef struct {
    int two, dimensions;
    char kind;
    int item_size, flags;
    Py_ssize_t *shape, *strides;
    void *data;
    PyObject *description;
} ArrayStruct;

enum { C_ORDER = 0x1, FORTRAN_ORDER = 0x2, ALIGNED = 0x100, NATIVE = 0x200, WRITEABLE = 0x400 };

/* A new capsule of an array, and the struct in it; NULL with an exception. `array_struct` is the attribute's name. */
static inline PyObject *open_array(PyObject *array, PyObject *array_struct, const ArrayStruct **found)
{
    PyObject *capsule = PyObject_GetAttr(array, array_struct);
    if (capsule == NULL)
        return NULL;
    *found = PyCapsule_GetPointer(capsule, NULL);
    if (*found != NULL && (*found)->two == 2)
        return capsule;
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "not numpy's array interface");
    Py_DECREF(capsule);
    return NULL;
}

static inline size_t size_of(const ArrayStruct *array)
{
    size_t size = 1;
    for (int axis = 0; axis < array->dimensions; axis++)
        size *= (size_t)array->shape[axis];
    return size;
}

/* A plain array of float64 or int64 (`kind`: f, i), in C order, of so many elements. */
static inline int is_plain(const ArrayStruct *array, char kind, size_t size)
{
    const int needed = C_ORDER | ALIGNED | NATIVE;
    return array->kind == kind && array->item_size == 8 && (array->flags & needed) == needed && size_of(array) == size;
}

static inline void close_arrays(PyObject **capsules, int opened)
{
    for (int i = 0; i < opened; i++)
        Py_DECREF(capsules[i]);
}

/* Several arrays: whether all are open; with an exception, and none of them, where one cannot be. */
static inline int open_arrays(PyObject *const *arrays, int many, PyObject **capsules, const ArrayStruct **found)
{
    PyObject *name = PyUnicode_InternFromString("__array_struct__");
    int opened = 0;
    while (name != NULL && opened < many && (capsules[opened] = open_array(arrays[opened], name, &found[opened])) != NULL)
        opened++;
    Py_XDECREF(name);
    if (opened < many)
        close_arrays(capsules, opened);
    return opened == many;
}

/* lay_out_side(counts, width, top, block), in _squared_errors.c. */
PyObject *lay_out_side(PyObject *module, PyObject *args);
/* squared_errors(scales, sides, most, errors), there, too. */
PyObject *squared_errors(PyObject *module, PyObject *args);
/* divergences(sums, kept, sure, values), in _divergences.c. */
PyObject *divergences(PyObject *module, PyObject *args);

#endif
