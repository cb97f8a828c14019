/* SPDX-License-Identifier: Apache-2.0
 *
 * The divergences that TensorRT's entropy search compares: what entropy_search.py does in NumPy, to the last bits, but
 * a candidate is left once it cannot be the least any more.
 *
 * A divergence is a sum over levels of parts that are never negative, and what the levels to come add is no less than
 * what they add taken as one (the log sum inequality). So a sum of some levels bounds it from below. Good candidates
 * come first: a few that stand wide apart.
 */
#include "_arrays.h"

#include <math.h>

enum { LEVELS = 128, LEVELS_LOG2 = 7, SUMS = 3, APART = 32, LOOK = 16 };

typedef struct {
    const double *mass, *filled, *entropy; /* double[bins + 1] each: prefix sums, see entropy_search.py */
    double total, log_total;
} Prefix;

/* A candidate on the way: what is in it of the levels below `level`, which end at bin `edge`. */
typedef struct {
    size_t kept, edge;
    int level;
    double outliers, log_kept, cross;
} Partial;

static void take_levels(const Prefix *prefix, Partial *partial, int many)
{
    double below = prefix->mass[partial->edge], filled_below = prefix->filled[partial->edge];
    for (int end = partial->level + many; partial->level < end; partial->level++) {
        size_t edge = ((size_t)(partial->level + 1) * partial->kept + LEVELS - 1) >> LEVELS_LOG2;
        double mass = prefix->mass[edge], filled = prefix->filled[edge], sum = mass - below, bins = filled - filled_below;
        double each = log((sum < 0.5 ? 0.5 : sum) / (bins < 1 ? 1 : bins));
        partial->cross += (partial->level == LEVELS - 1 ? sum + partial->outliers : sum) * each;
        partial->edge = edge, below = mass, filled_below = filled;
    }
}

/* What the divergence is at least. */
static double at_least(const Prefix *prefix, const Partial *partial)
{
    double below = prefix->mass[partial->edge], kept = prefix->mass[partial->kept];
    double share = (prefix->total - below) / prefix->total, left = kept - below;
    double known = (prefix->entropy[partial->edge] - partial->cross) / prefix->total +
                   below / prefix->total * (partial->log_kept - prefix->log_total);
    return share > 0 && left > 0 ? known + share * log(share * kept / left) : known;
}

static double divergence_of(const Prefix *prefix, size_t kept, double limit)
{
    double mass = prefix->mass[kept];
    Partial partial = {kept, 0, 0, prefix->total - mass, log(mass), 0.0};
    while (partial.level < LEVELS) {
        take_levels(prefix, &partial, LOOK);
        if (partial.level < LEVELS && at_least(prefix, &partial) > limit)
            return INFINITY;
    }
    double last = mass - prefix->mass[kept - 1] + partial.outliers;
    double represented = prefix->entropy[kept - 1] + last * log(last < 0.5 ? 0.5 : last);
    return (represented - partial.cross) / prefix->total - prefix->log_total + partial.log_kept;
}

static void fill(const Prefix *prefix, const int64_t *kept, size_t many, double sure, double *values)
{
    double least = INFINITY;
    for (int between = 0; between < 2; between++)
        for (size_t i = 0; i < many; i++) {
            if ((i % APART != 0) != between)
                continue;
            values[i] = divergence_of(prefix, (size_t)kept[i], least + sure);
            least = values[i] < least ? values[i] : least;
        }
}

static int check(const ArrayStruct *sums, const ArrayStruct *kept, const ArrayStruct *values)
{
    size_t bins = sums->dimensions == 2 && sums->shape[0] == SUMS ? (size_t)sums->shape[1] : 0;
    int fits = bins > LEVELS && is_plain(sums, 'f', SUMS * bins) && is_plain(kept, 'i', size_of(values)) &&
               is_plain(values, 'f', size_of(values)) && (values->flags & WRITEABLE);
    for (size_t i = 0; fits && i < size_of(kept); i++) {
        int64_t one = ((const int64_t *)kept->data)[i];
        fits = one >= LEVELS && (size_t)one < bins;
    }
    if (!fits)
        PyErr_SetString(PyExc_TypeError, "divergences takes plain arrays of the types and sizes that it names");
    return fits;
}

static void run(const ArrayStruct *const arrays[3], double sure)
{
    size_t bins = (size_t)arrays[0]->shape[1];
    const double *mass = arrays[0]->data;
    const Prefix prefix = {mass, mass + bins, mass + 2 * bins, mass[bins - 1], log(mass[bins - 1])};
    Py_BEGIN_ALLOW_THREADS
    fill(&prefix, arrays[1]->data, size_of(arrays[1]), sure, arrays[2]->data);
    Py_END_ALLOW_THREADS
}

PyObject *divergences(PyObject *module, PyObject *args)
{
    PyObject *arrays[3], *capsules[3] = {NULL, NULL, NULL};
    const ArrayStruct *found[3];
    double sure = 0.0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOdO", &arrays[0], &arrays[1], &sure, &arrays[2]))
        return NULL;
    if (!open_arrays(arrays, 3, capsules, found))
        return NULL;
    int fits = check(found[0], found[1], found[2]);
    if (fits)
        run(found, sure);
    close_arrays(capsules, 3);
    if (!fits)
        return NULL;
    Py_RETURN_NONE;
}
