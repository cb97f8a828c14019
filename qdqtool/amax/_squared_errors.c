/* SPDX-License-Identifier: Apache-2.0
 *
 * The squared error of int8 at each of many scales: what squared_errors.py does in NumPy, bit for bit the same sums,
 * without arrays of scales x levels. What the sums mean is said there. (Prefix sums are of whole numbers and halves of
 * them: they are exact, in any order, while sum x^2, in bin widths, is below 2**53.)
 *
 * A scale whose values beyond the highest level alone cost more than is of interest is not summed. That cost is at
 * least (sum of what they lie beyond it)^2 / how many they are, which two look-ups give.
 *
 * Sums run in the order of numpy's pairwise summation, which for up to 128 values is eight sums side by side. No flag
 * may let the compiler reassociate, or fuse a product with a sum (setup.py): the sums would differ.
 */
#include "_arrays.h"

#include <math.h>

enum { BINS = 4096, ROW = BINS + 1, LANES = 8, LONGEST = 128, SIDES = 2, REGULAR = 4 };

/* The values of one sign; see `Side` in squared_errors.py, which lays it out as float64[SIDE]. */
typedef struct {
    double width, top, many, first, second;
    double spread[ROW], slope[ROW], hinge[ROW];
} Side;

enum { SIDE = sizeof(Side) / sizeof(double) };

static size_t common_divisor(size_t a, size_t b)
{
    while (b != 0) {
        size_t rest = a % b;
        a = b, b = rest;
    }
    return a;
}

/* Lay out the values of one sign: 0 where there are none. Sums are exact below 2**53, and so in any order. */
static int lay_out(const ArrayStruct *counts, double width, double top, Side *side)
{
    size_t divisor = 0;
    double many = 0.0, first = 0.0, second = 0.0;
    for (size_t bin = 0; bin < BINS; bin++) {
        int64_t here = counts->item_size == 4 ? ((const int32_t *)counts->data)[bin] : ((const int64_t *)counts->data)[bin];
        double n = (double)here, at = (double)bin;
        side->spread[bin] = n, side->slope[bin] = many;
        many += n, first += n * at, second += n * (at * at);
        if (here != 0 && divisor != 1)
            divisor = common_divisor(bin, divisor);
    }
    int spread = divisor < REGULAR;
    side->spread[BINS] = 0.0, side->slope[BINS] = many;
    side->hinge[0] = 0.0;
    for (size_t bin = 0; bin < BINS; bin++) {
        if (!spread)
            side->spread[bin] = 0.0, side->slope[bin] = side->slope[bin + 1];
        side->hinge[bin + 1] = side->hinge[bin] + (side->slope[bin] + 0.5 * side->spread[bin]);
    }
    side->width = width, side->top = top, side->many = many;
    side->first = spread ? first + many / 2 : first;
    side->second = spread ? second + first + many / 3 : second;
    return many > 0.0;
}

/* G at an edge, in units of a bin; no bin outside of the tables whatever the edge is. */
static inline double hinge_at(const Side *side, double edge)
{
    size_t bin = edge >= BINS ? BINS : edge > 0 ? (size_t)edge : 0;
    edge -= (double)bin;
    return (side->spread[bin] * (0.5 * edge) + side->slope[bin]) * edge + side->hinge[bin];
}

/* The sum of G at the edges (k + 1/2) step over `top` levels. */
static double hinge_sum(const Side *side, double step, int top)
{
    double lanes[LANES];
    int k = 0, whole = top - top % LANES;
    for (; k < LANES; k++)
        lanes[k] = hinge_at(side, step * ((double)k + 0.5));
    for (; k < whole; k += LANES)
        for (int lane = 0; lane < LANES; lane++)
            lanes[lane] += hinge_at(side, step * ((double)(k + lane) + 0.5));
    double sum = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
    for (; k < top; k++)
        sum += hinge_at(side, step * ((double)k + 0.5));
    return sum;
}

static double error_of(const Side *side, double scale)
{
    double step = scale / side->width, highest = side->top * step;
    double cut = side->second - 2.0 * side->top * step * side->first + highest * highest * side->many;
    double error = cut - 2.0 * step * hinge_sum(side, step, (int)side->top);
    return side->width * side->width * (error > 0.0 ? error : 0.0);
}

/* What the values above the highest level cost at least. */
static double cut_off(const Side *side, double scale)
{
    double highest = side->top * (scale / side->width);
    if (!(highest > 0.0 && highest < BINS))
        return 0.0;
    size_t bin = (size_t)highest;
    double many = side->many - (side->slope[bin] + side->spread[bin] * (highest - (double)bin));
    double beyond = side->first - highest * side->many + hinge_at(side, highest);
    return many > 0.0 && beyond > 0.0 ? side->width * side->width * (beyond * beyond / many) : 0.0;
}

static int is_counts(const ArrayStruct *array)
{
    const int needed = C_ORDER | ALIGNED | NATIVE;
    return array->kind == 'i' && (array->item_size == 4 || array->item_size == 8) &&
           (array->flags & needed) == needed && size_of(array) == BINS;
}

PyObject *lay_out_side(PyObject *module, PyObject *args)
{
    PyObject *arrays[2], *capsules[2] = {NULL, NULL};
    const ArrayStruct *found[2];
    double width = 0.0, top = 0.0;
    int filled = -1;
    (void)module;
    if (!PyArg_ParseTuple(args, "OddO", &arrays[0], &width, &top, &arrays[1]))
        return NULL;
    if (!open_arrays(arrays, 2, capsules, found))
        return NULL;
    if (is_counts(found[0]) && is_plain(found[1], 'f', SIDE) && (found[1]->flags & WRITEABLE))
        filled = lay_out(found[0], width, top, found[1]->data);
    else
        PyErr_SetString(PyExc_TypeError, "lay_out_side takes plain arrays of the types and sizes that it names");
    close_arrays(capsules, 2);
    return filled < 0 ? NULL : PyBool_FromLong(filled);
}

static void fill(const Side *const sides[SIDES], int many, const double *scales, size_t size, double most, double *errors)
{
    for (size_t i = 0; i < size; i++) {
        double least = 0.0, error = 0.0;
        for (int side = 0; side < many && most < INFINITY; side++)
            least += cut_off(sides[side], scales[i]);
        for (int side = 0; side < many && least <= most; side++)
            error += error_of(sides[side], scales[i]);
        errors[i] = least <= most ? error : INFINITY;
    }
}

static int check(const ArrayStruct *const *found, int many)
{
    const ArrayStruct *scales = found[0], *errors = found[1];
    int fits = is_plain(scales, 'f', size_of(errors)) && is_plain(errors, 'f', size_of(errors)) &&
               (errors->flags & WRITEABLE);
    for (int i = 0; fits && i < many; i++) {
        const Side *side = found[2 + i]->data;
        fits = is_plain(found[2 + i], 'f', SIDE) && side->top >= LANES && side->top <= LONGEST;
    }
    if (!fits)
        PyErr_SetString(PyExc_TypeError, "squared_errors takes plain float64 arrays of the sizes that it names");
    return fits;
}

static void run(const ArrayStruct *const *found, int many, double most)
{
    const Side *sides[SIDES] = {NULL, NULL};
    for (int i = 0; i < many; i++)
        sides[i] = found[2 + i]->data;
    Py_BEGIN_ALLOW_THREADS
    fill(sides, many, found[0]->data, size_of(found[0]), most, found[1]->data);
    Py_END_ALLOW_THREADS
}

PyObject *squared_errors(PyObject *module, PyObject *args)
{
    PyObject *arrays[2 + SIDES], *capsules[2 + SIDES] = {NULL, NULL}, *given;
    const ArrayStruct *found[2 + SIDES];
    double most = 0.0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO!dO", &arrays[0], &PyTuple_Type, &given, &most, &arrays[1]))
        return NULL;
    int many = (int)PyTuple_Size(given), fits = many <= SIDES;
    for (int i = 0; fits && i < many; i++)
        arrays[2 + i] = PyTuple_GetItem(given, i);
    if (!fits)
        PyErr_Format(PyExc_TypeError, "squared_errors takes %d sides at most", SIDES);
    if (!fits || !open_arrays(arrays, 2 + many, capsules, found))
        return NULL;
    fits = check(found, many);
    if (fits)
        run(found, many, most);
    close_arrays(capsules, 2 + many);
    if (!fits)
        return NULL;
    Py_RETURN_NONE;
}
