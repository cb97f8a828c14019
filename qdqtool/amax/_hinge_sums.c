/* SPDX-License-Identifier: Apache-2.0
 *
 * The sum over the levels of int8 of what values below each rounding edge lack to it: what hinge_sums.py does in NumPy,
 * bit for bit the same sums, without arrays of candidates x levels. What the sums mean is said in methods.py.
 *
 * Sums run in the order of numpy's pairwise summation, which for up to 128 values is eight sums side by side. No flag
 * may let the compiler reassociate, or fuse a product with a sum (setup.py): the sums would differ.
 */
#include "_arrays.h"

enum { BINS = 4096, ROW = BINS + 1, TABLES = 3, LANES = 8, LONGEST = 128 };

typedef struct {
    const double *spread, *slope, *hinge; /* double[ROW] each; see hinge_sums.py */
} Tables;

/* G at the edge of level k + 1, for a scale of `step` bins; no bin outside of the tables whatever the step is. */
static inline double at_edge(const Tables *tables, double step, int k)
{
    double edge = step * ((double)k + 0.5);
    size_t bin = edge >= BINS ? BINS : edge > 0 ? (size_t)edge : 0;
    edge -= (double)bin;
    return (tables->spread[bin] * (0.5 * edge) + tables->slope[bin]) * edge + tables->hinge[bin];
}

/* The sum of `at_edge` over `top` levels. */
static double sum_of(const Tables *tables, double step, int top)
{
    double lanes[LANES];
    int k = 0, whole = top - top % LANES;
    for (; k < LANES; k++)
        lanes[k] = at_edge(tables, step, k);
    for (; k < whole; k += LANES)
        for (int lane = 0; lane < LANES; lane++)
            lanes[lane] += at_edge(tables, step, k + lane);
    double sum = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
    for (; k < top; k++)
        sum += at_edge(tables, step, k);
    return sum;
}

/* Whether an array is float64 in C order of this size. */
static int is_plain(const ArrayStruct *array, size_t size)
{
    const int needed = C_ORDER | ALIGNED | NATIVE;
    return array->kind == 'f' && array->item_size == 8 && (array->flags & needed) == needed && size_of(array) == size;
}

static int check(const ArrayStruct *steps, const ArrayStruct *tables, const ArrayStruct *sums, int top)
{
    if (is_plain(steps, size_of(steps)) && is_plain(tables, (size_t)TABLES * ROW) &&
        is_plain(sums, size_of(steps)) && (sums->flags & WRITEABLE) && top >= LANES && top <= LONGEST)
        return 1;
    PyErr_SetString(PyExc_TypeError, "hinge_sums takes plain float64 arrays of the sizes that it names");
    return 0;
}

static int run(PyObject *arrays[3], PyObject *name, int top)
{
    const ArrayStruct *found[3] = {NULL, NULL, NULL};
    PyObject *capsules[3] = {NULL, NULL, NULL};
    int status = -1, opened = 0;
    while (opened < 3 && (capsules[opened] = open_array(arrays[opened], name, &found[opened])) != NULL)
        opened++;
    if (opened == 3 && check(found[0], found[1], found[2], top)) {
        const double *steps = found[0]->data, *first = found[1]->data;
        const Tables tables = {first, first + ROW, first + 2 * ROW};
        double *sums = found[2]->data;
        size_t many = size_of(found[0]);
        Py_BEGIN_ALLOW_THREADS
        for (size_t i = 0; i < many; i++)
            sums[i] = sum_of(&tables, steps[i], top);
        Py_END_ALLOW_THREADS
        status = 0;
    }
    for (int i = 0; i < opened; i++)
        Py_DECREF(capsules[i]);
    return status;
}

PyObject *hinge_sums(PyObject *module, PyObject *args)
{
    PyObject *arrays[3];
    int top = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOiO", &arrays[0], &arrays[1], &top, &arrays[2]))
        return NULL;
    PyObject *name = PyUnicode_InternFromString("__array_struct__");
    if (name == NULL)
        return NULL;
    int status = run(arrays, name, top);
    Py_DECREF(name);
    if (status < 0)
        return NULL;
    Py_RETURN_NONE;
}
