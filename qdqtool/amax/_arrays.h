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

/* hinge_sums(steps, tables, top, sums), in _hinge_sums.c. */
PyObject *hinge_sums(PyObject *module, PyObject *args);

#endif
