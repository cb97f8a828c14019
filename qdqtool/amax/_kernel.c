/* SPDX-License-Identifier: Apache-2.0
 *
 * Counting values into histograms: what histogram.py and trt_entropy.py do in NumPy, bit for bit the same state, in
 * about a quarter of the time and without the GIL. Only counting is here; what a histogram means is said there.
 *
 * How it goes: an array is taken in pieces that fit the first caches. For each piece
 *   1. `range`: smallest and largest value, number of zeros, whether all is finite (NaN and infinities are rare and
 *      are counted and taken out by `keep_finite`); row by row where the range of each channel is wanted;
 *   2. the exponent grows if it must;
 *   3. `bins` or `quotients`: the bin of every value as a 16-bit number;
 *   4. `tally`: the bins are counted, and meanwhile the next piece is called into the cache.
 * Steps 1 and 3 exist in several variants, the best of which is chosen when the process starts. The rest is one code.
 *
 * What is avoided, by measurement:
 *   - Adding 1 to the same bin twice in a row waits for the first store. So zeros, the one value that really repeats
 *     (after a Relu), are dropped before the tally, and neighbors go to two tables in turn.
 *   - Two tables exactly 16 KiB apart would compete for the same lines of the first-level cache: PADDING.
 *   - Clearing and adding up tables costs as much as counting 6,000 values: small arrays count straight into the state,
 *     and of large ones only the bins up to the largest value are added up.
 *   - Activations come out of a run cold. Step 1 would wait for the memory and step 4 for the adders, one after the
 *     other: AHEAD lets them overlap.
 *
 * Another thread may change an array while it is counted. What its histogram holds is then undefined, but nothing is
 * written outside of it, and no other histogram sees it: step 3 cuts every bin off at the last one, `flush` notices
 * bins beyond what step 1 promised, and `keep_finite` looks at a value once.
 *
 * Arrays come through numpy's array interface (`__array_struct__`, a capsule that keeps the array alive and tells its
 * type and layout), so that neither numpy's headers nor an unchecked address is needed. The limited API of 3.10 has
 * no buffer protocol. No flag may let the compiler reassociate or approximate (-ffast-math): the states would differ.
 */
#include "_arrays.h"

#include <math.h>
#include <string.h>

#if (defined(__x86_64__) || defined(__i386__)) && (defined(__GNUC__) || defined(__clang__))
#define HAVE_AVX2 1
#include <immintrin.h>
#define AVX2 __attribute__((target("avx2,popcnt")))
#endif

/* Call a line of memory that will be read soon; any address will do. */
#if defined(__GNUC__) || defined(__clang__)
#define AHEAD(address) __builtin_prefetch((address), 0, 2) /* 2: not all of it fits the first cache */
#else
#define AHEAD(address) ((void)(address))
#endif

/* The state, as histogram.py and trt_entropy.py lay it out: WORDS int64, then the counts. LAYOUT changes with it, so
 * that a kernel built before the change is not used after it (kernel.py). */
#define LAYOUT 5
enum { WORDS = 8, BINS_LOG2 = 12, BINS = 1 << BINS_LOG2, SIDES = 2, ENTROPY_BINS = 2048 };
enum { POWER_LENGTH = WORDS + SIDES * BINS, ENTROPY_LENGTH = WORDS + ENTROPY_BINS };
enum { NARROW_LENGTH = WORDS + SIDES * BINS / 2 }; /* with counts of 32 bits, as long as these hold them (histogram.py) */
enum { POSITIVE, NEGATIVE, ZEROS, NANS, POSITIVE_INFS, NEGATIVE_INFS, LOW, HIGH };      /* words of Histogram */
enum { ENTROPY_ZEROS, ENTROPY_NANS, ENTROPY_INFS, ENTROPY_WIDTH };                      /* words of EntropyHistogram */
enum { SMALLEST_EXPONENT = BINS_LOG2 - 126 };

enum {
    PIECE = 4096,         /* values at a time: 16 KiB, read twice, the second time from the cache */
    SLACK = 32,           /* bins that a vector store may write behind the last one */
    PADDING = 80,         /* between the two tables */
    LINE = 16,            /* values in a line of the caches */
    TABLES_FROM = 32768,  /* values from which two tables pay */
    FLUSH = 1 << 30       /* values after which 32-bit counts are added to the state, long before they overflow */
};

typedef const unsigned char *Values; /* float32 in native order; by bytes, for a view need not be aligned */

typedef struct {
    float low, high; /* over what is no NaN; +inf, -inf of nothing */
    size_t zeros;
    int finite; /* whether every value is */
} Range;

typedef struct {
    const char *name;
    Range (*range)(Values x, size_t n);
    /* Bins of n finite values, `up` and `down` the factors of the signs: trunc(|x| * factor), negative ones + BINS;
     * below SIDES * BINS whatever the values have become since their range was taken. A zero falls into bin 0, or, where `squeeze` says so, out. Returns how many bins there are, in any order. */
    size_t (*bins)(Values x, size_t n, float up, float down, int squeeze, uint16_t *out);
    /* The same for EntropyHistogram: min(trunc(|x| / width), 2047) with the quotient in float64. */
    size_t (*quotients)(Values x, size_t n, double width, int squeeze, uint16_t *out);
} Variant;

typedef struct {
    uint32_t first[SIDES * BINS + PADDING], second[SIDES * BINS]; /* all 0 between two arrays */
    uint16_t bins[PIECE + SLACK];
    float finite[PIECE];
} Workspace;

static float value_at(Values x, size_t i)
{
    float value;
    memcpy(&value, x + i * sizeof value, sizeof value);
    return value;
}

static uint32_t bits_at(Values x, size_t i)
{
    uint32_t bits;
    memcpy(&bits, x + i * sizeof bits, sizeof bits);
    return bits;
}

static double get_real(const int64_t *word)
{
    double value;
    memcpy(&value, word, sizeof value);
    return value;
}

static void set_real(int64_t *word, double value) { memcpy(word, &value, sizeof value); }

/* ---- The baseline: plain C, which compilers turn into whatever vectors the platform always has. */

static Range nothing(void)
{
    Range range = {INFINITY, -INFINITY, 0, 1};
    return range;
}

static Range join(Range a, Range b)
{
    a.low = b.low < a.low ? b.low : a.low;
    a.high = b.high > a.high ? b.high : a.high;
    a.zeros += b.zeros;
    a.finite &= b.finite;
    return a;
}

static Range range_baseline(Values x, size_t n)
{
    /* In integers, whose minimum may be reassociated: flipping the magnitude of negative numbers orders the bits of
     * floats as the floats are, -NaN < -inf < ... < -0 < 0 < ... < inf < NaN. */
    int32_t low = INT32_MAX, high = INT32_MIN;
    uint32_t zeros = 0;
    Range range = nothing();
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = bits_at(x, i);
        int32_t key = (int32_t)(bits ^ ((0u - (bits >> 31)) & 0x7fffffffu));
        low = key < low ? key : low;
        high = key > high ? key : high;
        zeros += (bits << 1) == 0;
    }
    if (n == 0)
        return range;
    uint32_t lowest = (uint32_t)low ^ (low < 0 ? 0x7fffffffu : 0), highest = (uint32_t)high ^ (high < 0 ? 0x7fffffffu : 0);
    memcpy(&range.low, &lowest, sizeof lowest);
    memcpy(&range.high, &highest, sizeof highest);
    range.zeros = zeros;
    range.finite = (lowest & 0x7f800000u) != 0x7f800000u && (highest & 0x7f800000u) != 0x7f800000u;
    return range;
}

/* Take the bins of zeros out of `out`. A pass of its own, for the one before is then free of dependences. */
static size_t drop_zeros(Values x, size_t n, uint16_t *out)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        out[kept] = out[i];
        kept += (bits_at(x, i) << 1) != 0;
    }
    return kept;
}

static size_t bins_baseline(Values x, size_t n, float up, float down, int squeeze, uint16_t *out)
{
    for (size_t i = 0; i < n; i++) {
        float value = value_at(x, i), scaled = value * (value < 0 ? -down : up);
        scaled = scaled < BINS - 1 ? scaled : BINS - 1; /* a NaN, too */
        out[i] = (uint16_t)(((int32_t)scaled & (BINS - 1)) + (value < 0 ? BINS : 0));
    }
    return squeeze ? drop_zeros(x, n, out) : n;
}

static size_t quotients_baseline(Values x, size_t n, double width, int squeeze, uint16_t *out)
{
    for (size_t i = 0; i < n; i++) {
        double quotient = fabs((double)value_at(x, i)) / width;
        out[i] = (uint16_t)(quotient < ENTROPY_BINS - 1 ? (int32_t)quotient : ENTROPY_BINS - 1);
    }
    return squeeze ? drop_zeros(x, n, out) : n;
}

static const Variant BASELINE = {"baseline", range_baseline, bins_baseline, quotients_baseline};

#ifdef HAVE_AVX2
/* ---- AVX2. Eight or sixteen values at a time; what is left over goes to the baseline. */

/* For each set of eight 16-bit lanes, the byte shuffle that moves them to the front, in order. */
static uint8_t FRONT[256][16];

static void fill_front(void)
{
    for (int set = 0; set < 256; set++)
        for (int lane = 0, place = 0; lane < 8; lane++)
            if (set >> lane & 1) {
                FRONT[set][2 * place] = (uint8_t)(2 * lane);
                FRONT[set][2 * place + 1] = (uint8_t)(2 * lane + 1);
                place++;
            }
}

/* The smallest or the largest of eight, in every lane: `lower` is a constant. */
AVX2 static inline __m256 over_lanes(__m256 x, int lower)
{
    __m256 other = _mm256_permute2f128_ps(x, x, 1);
    x = lower ? _mm256_min_ps(x, other) : _mm256_max_ps(x, other);
    other = _mm256_permute_ps(x, 0x4e);
    x = lower ? _mm256_min_ps(x, other) : _mm256_max_ps(x, other);
    other = _mm256_permute_ps(x, 0xb1);
    return lower ? _mm256_min_ps(x, other) : _mm256_max_ps(x, other);
}

AVX2 static inline __m256i zero_lanes(__m256 x)
{
    return _mm256_cmpeq_epi32(_mm256_slli_epi32(_mm256_castps_si256(x), 1), _mm256_setzero_si256());
}

AVX2 static inline size_t sum_of_lanes(__m256i x)
{
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return (size_t)(uint32_t)_mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

AVX2 static Range range_avx2(Values x, size_t n)
{
    static const int32_t LAST[16] = {0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1, -1, -1, -1, -1};
    const float *p = (const float *)(const void *)x;
    size_t i = 0;
    __m256 low0 = _mm256_set1_ps(INFINITY), low1 = low0, high0 = _mm256_set1_ps(-INFINITY), high1 = high0;
    __m256 unordered = _mm256_setzero_ps();
    __m256i zeros0 = _mm256_setzero_si256(), zeros1 = zeros0;
    if (n < 8)
        return range_baseline(x, n);
    for (; i + 16 <= n; i += 16) {
        __m256 a = _mm256_loadu_ps(p + i), b = _mm256_loadu_ps(p + i + 8);
        /* A NaN as the first operand gives the second: NaN never enters, so it is looked for apart. */
        low0 = _mm256_min_ps(a, low0), low1 = _mm256_min_ps(b, low1);
        high0 = _mm256_max_ps(a, high0), high1 = _mm256_max_ps(b, high1);
        unordered = _mm256_or_ps(unordered, _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
        zeros0 = _mm256_sub_epi32(zeros0, zero_lanes(a));
        zeros1 = _mm256_sub_epi32(zeros1, zero_lanes(b));
    }
    while (i < n) { /* the last vector overlaps the one before; zeros are counted in its last n - i lanes only */
        size_t fresh = n - i < 8 ? n - i : 8;
        __m256 a = _mm256_loadu_ps(p + i + fresh - 8);
        __m256i mask = _mm256_loadu_si256((const __m256i *)(LAST + fresh));
        low0 = _mm256_min_ps(a, low0), high0 = _mm256_max_ps(a, high0);
        unordered = _mm256_or_ps(unordered, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
        zeros0 = _mm256_sub_epi32(zeros0, _mm256_and_si256(zero_lanes(a), mask));
        i += fresh;
    }
    Range range;
    range.low = _mm256_cvtss_f32(over_lanes(_mm256_min_ps(low0, low1), 1));
    range.high = _mm256_cvtss_f32(over_lanes(_mm256_max_ps(high0, high1), 0));
    range.zeros = sum_of_lanes(_mm256_add_epi32(zeros0, zeros1));
    range.finite = range.low != -INFINITY && range.high != INFINITY && _mm256_movemask_ps(unordered) == 0;
    return range;
}

/* Bins of sixteen values, as two vectors of int32, become sixteen int16; of `zero` lanes only the others stay. */
AVX2 static inline size_t put(__m256i a, __m256i b, __m256i zero_a, __m256i zero_b, int squeeze, uint16_t *out)
{
    __m256i both = _mm256_packus_epi32(a, b); /* within halves; the order of bins means nothing */
    if (!squeeze) {
        _mm256_storeu_si256((__m256i *)out, both);
        return 16;
    }
    __m256i zero = _mm256_packs_epi16(_mm256_packs_epi32(zero_a, zero_b), _mm256_setzero_si256());
    uint32_t keep = ~(uint32_t)_mm256_movemask_epi8(zero);
    uint32_t here = keep & 0xff, there = keep >> 16 & 0xff;
    __m128i shuffle = _mm_loadu_si128((const __m128i *)FRONT[here]);
    _mm_storeu_si128((__m128i *)out, _mm_shuffle_epi8(_mm256_castsi256_si128(both), shuffle));
    out += __builtin_popcount(here);
    shuffle = _mm_loadu_si128((const __m128i *)FRONT[there]);
    _mm_storeu_si128((__m128i *)out, _mm_shuffle_epi8(_mm256_extracti128_si256(both, 1), shuffle));
    return (size_t)(__builtin_popcount(here) + __builtin_popcount(there));
}

AVX2 static inline __m256i bins8(__m256 x, __m256 up, __m256 down)
{
    __m256 negative = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ); /* which -0 is not */
    __m256 scaled = _mm256_mul_ps(x, _mm256_blendv_ps(up, down, negative));
    /* Of a NaN the minimum is its second operand; what is below 0 becomes 0 in `put`. */
    __m256i bin = _mm256_cvttps_epi32(_mm256_min_ps(scaled, _mm256_set1_ps(BINS - 1)));
    return _mm256_or_si256(bin, _mm256_and_si256(_mm256_castps_si256(negative), _mm256_set1_epi32(BINS)));
}

AVX2 static inline size_t bins_loop(Values x, size_t n, float up, float down, int squeeze, uint16_t *out)
{
    const float *p = (const float *)(const void *)x;
    const __m256 factor = _mm256_set1_ps(up), other = _mm256_set1_ps(-down);
    size_t whole = n & ~(size_t)15, kept = 0;
    for (size_t i = 0; i < whole; i += 16) {
        __m256 a = _mm256_loadu_ps(p + i), b = _mm256_loadu_ps(p + i + 8);
        kept += put(bins8(a, factor, other), bins8(b, factor, other), zero_lanes(a), zero_lanes(b), squeeze, out + kept);
    }
    return kept + bins_baseline(x + whole * sizeof(float), n - whole, up, down, squeeze, out + kept);
}

AVX2 static size_t bins_avx2(Values x, size_t n, float up, float down, int squeeze, uint16_t *out)
{
    return squeeze ? bins_loop(x, n, up, down, 1, out) : bins_loop(x, n, up, down, 0, out);
}

AVX2 static inline __m256i quotients8(__m256 x, __m256d inverse)
{
    const __m256d nudge = _mm256_set1_pd(0x1p-30);
    __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
    __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(magnitude)), b = _mm256_cvtps_pd(_mm256_extractf128_ps(magnitude, 1));
    __m128i low = _mm256_cvttpd_epi32(_mm256_add_pd(_mm256_mul_pd(a, inverse), nudge));
    __m128i high = _mm256_cvttpd_epi32(_mm256_add_pd(_mm256_mul_pd(b, inverse), nudge));
    __m256i bin = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    return _mm256_min_epu32(bin, _mm256_set1_epi32(ENTROPY_BINS - 1));
}

AVX2 static inline size_t quotients_loop(Values x, size_t n, double width, int squeeze, uint16_t *out)
{
    const float *p = (const float *)(const void *)x;
    const __m256d inverse = _mm256_set1_pd(1.0 / width);
    size_t whole = n & ~(size_t)15, kept = 0;
    for (size_t i = 0; i < whole; i += 16) {
        __m256 a = _mm256_loadu_ps(p + i), b = _mm256_loadu_ps(p + i + 8);
        kept += put(quotients8(a, inverse), quotients8(b, inverse), zero_lanes(a), zero_lanes(b), squeeze, out + kept);
    }
    return kept + quotients_baseline(x + whole * sizeof(float), n - whole, width, squeeze, out + kept);
}

/* Without a division, and yet the same bins. A width is a float32 times a power of two, so |x| / width is a ratio of
 * two 24-bit integers times a power of two: below 2048 it is either an integer or further than 2**-26 from one. The
 * product with the inverse is off by less than 2**-40, so adding 2**-30 before cutting off gives floor(|x| / width).
 * A width of more than 24 bits, which no data gives, is divided by. */
AVX2 static size_t quotients_avx2(Values x, size_t n, double width, int squeeze, uint16_t *out)
{
    uint64_t bits;
    memcpy(&bits, &width, sizeof bits);
    if (bits & 0x1fffffff)
        return quotients_baseline(x, n, width, squeeze, out);
    return squeeze ? quotients_loop(x, n, width, 1, out) : quotients_loop(x, n, width, 0, out);
}

static const Variant AVX2_VARIANT = {"AVX2", range_avx2, bins_avx2, quotients_avx2};
#endif

/* The variants that this processor can run, the best first. */
static int available(const Variant *found[2])
{
    int many = 0;
#ifdef HAVE_AVX2
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2"))
        found[many++] = &AVX2_VARIANT;
#endif
    found[many++] = &BASELINE;
    return many;
}

/* ---- One code from here on. */

/* Memory that will be read next. */
typedef struct {
    Values at;
    size_t n;
} Next;

/* Of an array with the axes [N, channels, ...]: where it stands, and the range of each channel so far. NaN is none. */
typedef struct {
    float *lows, *highs; /* by channel; +inf, -inf of nothing, never -0 */
    size_t channels, length; /* a row is one channel of one sample */
    size_t channel, left;    /* of the next value; how many of its row are left */
} Rows;

typedef struct {
    const Variant *variant;
    Workspace *work;
    Rows *rows; /* NULL: the ranges of channels are not wanted */
    int64_t *counts;     /* NULL: counts are `narrow` */
    uint32_t *narrow;    /* NULL: they are not */
    int64_t pending;     /* values in the tables that are not yet in `counts`; -1: the tables are not used */
    size_t length;       /* of counts */
    size_t reach[SIDES]; /* of the tables, how many bins from 0 and from BINS on may hold something */
} Counter;

static Counter counter_of(const Variant *variant, Workspace *work, int64_t *counts, size_t length, size_t n, int narrow)
{
    Counter counter = {variant, work, NULL, counts, NULL, n < TABLES_FROM ? -1 : 0, length, {0, 0}};
    if (narrow)
        counter.counts = NULL, counter.narrow = (uint32_t *)counts;
    return counter;
}

/* Counts of 32 bits wrap around, as the zeros of bin 0 are taken out before all of them are in. */
static void add_to(Counter *counter, size_t bin, int64_t many)
{
    if (counter->narrow)
        counter->narrow[bin] += (uint32_t)many;
    else
        counter->counts[bin] += many;
}

static void flush(Counter *counter)
{
    int64_t found = 0;
    for (int side = 0; side < SIDES && counter->pending > 0; side++) {
        size_t reach = counter->reach[side];
        uint32_t *first = counter->work->first + side * BINS, *second = counter->work->second + side * BINS;
        for (size_t i = 0; i < reach; i++) {
            int64_t both = (int64_t)first[i] + second[i];
            add_to(counter, (size_t)side * BINS + i, both);
            found += both;
        }
        memset(first, 0, reach * sizeof *first);
        memset(second, 0, reach * sizeof *second);
    }
    if (counter->pending > 0 && found != counter->pending) { /* values have changed meanwhile; the next array's may not */
        memset(counter->work->first, 0, sizeof counter->work->first);
        memset(counter->work->second, 0, sizeof counter->work->second);
    }
    counter->pending = counter->pending < 0 ? -1 : 0;
    counter->reach[0] = counter->reach[1] = 0;
}

/* What is done with counts, for either width of them:
 *   - `tally_name` counts bins, as many as fill lines, and calls the next piece meanwhile; returns how many;
 *   - `fold_name` adds up pairs of bins `steps` times, in place. */
#define COUNTS_OF(Count, tally_name, fold_name)                                           \
    static size_t tally_name(Count *counts, const uint16_t *bins, size_t n, Next next)    \
    {                                                                                     \
        size_t i = 0;                                                                     \
        for (; i + LINE <= n; i += LINE) {                                                \
            if (i < next.n)                                                               \
                AHEAD(next.at + i * sizeof(float));                                       \
            for (size_t j = i; j < i + LINE; j += 4) {                                    \
                uint64_t four;                                                            \
                memcpy(&four, bins + j, sizeof four);                                     \
                counts[four & 0xffff]++;                                                  \
                counts[four >> 16 & 0xffff]++;                                            \
                counts[four >> 32 & 0xffff]++;                                            \
                counts[four >> 48]++;                                                     \
            }                                                                             \
        }                                                                                 \
        return i;                                                                         \
    }                                                                                     \
    static void fold_name(Count *counts, size_t length, int steps)                        \
    {                                                                                     \
        size_t kept = length, group = 1;                                                  \
        for (; steps > 0 && kept > 1; steps--) {                                          \
            kept /= 2;                                                                    \
            group *= 2;                                                                   \
        }                                                                                 \
        for (size_t bin = 0; bin < kept; bin++) {                                         \
            Count sum = 0;                                                                \
            for (size_t i = 0; i < group; i++)                                            \
                sum += counts[bin * group + i];                                           \
            counts[bin] = sum;                                                            \
        }                                                                                 \
        memset(counts + kept, 0, (length - kept) * sizeof *counts);                       \
    }
COUNTS_OF(int64_t, tally_wide, fold)
COUNTS_OF(uint32_t, tally_narrow, fold_narrow)

static void count4_in_tables(uint32_t *first, uint32_t *second, const uint16_t *bins)
{
    uint64_t four;
    memcpy(&four, bins, sizeof four);
    first[four & 0xffff]++;
    second[four >> 16 & 0xffff]++;
    first[four >> 32 & 0xffff]++;
    second[four >> 48]++;
}

/* Count `n` bins, and call the next piece meanwhile: a line of it for as many bins as a line holds values. */
static void tally(Counter *counter, size_t n, Next next)
{
    const uint16_t *bins = counter->work->bins;
    size_t i = 0, j;
    if (counter->pending < 0) {
        i = counter->narrow ? tally_narrow(counter->narrow, bins, n, next) : tally_wide(counter->counts, bins, n, next);
    } else {
        for (; i + LINE <= n; i += LINE) {
            if (i < next.n)
                AHEAD(next.at + i * sizeof(float));
            for (j = 0; j < LINE; j += 4)
                count4_in_tables(counter->work->first, counter->work->second, bins + i + j);
        }
        counter->pending += (int64_t)i;
    }
    for (j = i; j < n; j++)
        add_to(counter, bins[j], 1);
    for (; i < next.n; i += LINE)
        AHEAD(next.at + i * sizeof(float));
    if (counter->pending > FLUSH)
        flush(counter);
}

/* The finite ones of `*n` values, packed; words[0], [1], [2] count NaN, +inf, -inf. */
static Values keep_finite(Values x, size_t *n, float *packed, int64_t words[3])
{
    size_t kept = 0;
    for (size_t i = 0; i < *n; i++) {
        uint32_t bits = bits_at(x, i), magnitude = bits & 0x7fffffffu;
        memcpy(packed + kept, &bits, sizeof bits);
        kept += magnitude < 0x7f800000u;
        words[0] += magnitude > 0x7f800000u;
        words[1] += bits == 0x7f800000u;
        words[2] += bits == 0xff800000u;
    }
    *n = kept;
    return (Values)packed;
}

/* Only `low` and `high`, infinities among them. */
static Range without_nan(Values x, size_t n)
{
    Range range = nothing();
    for (size_t i = 0; i < n; i++) {
        float value = value_at(x, i);
        range.low = value < range.low ? value : range.low;
        range.high = value > range.high ? value : range.high;
    }
    return range;
}

/* The smallest E >= SMALLEST_EXPONENT with value < 2**E. */
static int exponent_above(float value)
{
    int exponent = SMALLEST_EXPONENT;
    if (value > 0)
        frexp((double)value, &exponent);
    return exponent < SMALLEST_EXPONENT ? SMALLEST_EXPONENT : exponent;
}

static void grow(Counter *counter, int64_t *block, int side, int exponent)
{
    if (exponent <= block[side])
        return;
    flush(counter);
    int steps = (int)(exponent - block[side]);
    if (counter->narrow)
        fold_narrow(counter->narrow + side * BINS, BINS, steps);
    else
        fold(counter->counts + side * BINS, BINS, steps);
    block[side] = exponent;
}

/* Whether dropping zeros costs less than counting them. */
static int worth_squeezing(size_t zeros, size_t n) { return zeros > n / 16; }

/* Row by row: what comes to the same as one look at all values, and the ranges of the channels on the way. */
static Range range_of_rows(const Variant *variant, Values x, size_t n, Rows *rows)
{
    Range total = nothing();
    while (n > 0) {
        size_t many = n < rows->left ? n : rows->left;
        Range range = variant->range(x, many);
        total = join(total, range);
        if (!range.finite)
            range = without_nan(x, many);
        if (range.low < rows->lows[rows->channel])
            rows->lows[rows->channel] = range.low + 0.0f; /* turns -0.0 into 0.0 */
        if (range.high > rows->highs[rows->channel])
            rows->highs[rows->channel] = range.high + 0.0f;
        x += many * sizeof(float);
        n -= many;
        rows->left -= many;
        if (rows->left == 0) {
            rows->left = rows->length;
            rows->channel = rows->channel + 1 < rows->channels ? rows->channel + 1 : 0;
        }
    }
    return total;
}

static Range range_of(const Counter *counter, Values x, size_t n)
{
    return counter->rows ? range_of_rows(counter->variant, x, n, counter->rows) : counter->variant->range(x, n);
}

static void reach(Counter *counter, int side, size_t bins)
{
    if (bins > counter->reach[side])
        counter->reach[side] = bins;
}

/* How many bins from 0 on magnitudes up to this one fall into; 0 of none. The product may be 0 where the magnitude is
 * not: then it is bin 0. */
static size_t bins_up_to(float magnitude, float factor)
{
    float scaled = magnitude * factor;
    return scaled < BINS ? magnitude > 0 ? (size_t)scaled + 1 : 0 : BINS;
}

static void add_piece(Counter *counter, int64_t *block, Values x, size_t n, Next next)
{
    const Variant *variant = counter->variant;
    Range range = range_of(counter, x, n);
    if (!range.finite) {
        x = keep_finite(x, &n, counter->work->finite, block + NANS);
        range = variant->range(x, n);
    }
    if (n == 0)
        return;
    double low = get_real(block + LOW), high = get_real(block + HIGH);
    if (range.low < low)
        set_real(block + LOW, (double)range.low + 0.0); /* + 0.0 turns -0.0 into 0.0 */
    if (range.high > high)
        set_real(block + HIGH, (double)range.high + 0.0);
    block[ZEROS] += (int64_t)range.zeros;
    if (range.zeros == n)
        return;
    grow(counter, block, POSITIVE, exponent_above(range.high));
    grow(counter, block, NEGATIVE, exponent_above(-range.low));
    float up = (float)ldexp(1.0, (int)(BINS_LOG2 - block[POSITIVE]));
    float down = (float)ldexp(1.0, (int)(BINS_LOG2 - block[NEGATIVE]));
    reach(counter, POSITIVE, 1); /* bin 0 is that of zeros, too */
    reach(counter, POSITIVE, bins_up_to(range.high, up));
    reach(counter, NEGATIVE, bins_up_to(-range.low, down));
    int squeeze = worth_squeezing(range.zeros, n);
    tally(counter, variant->bins(x, n, up, down, squeeze, counter->work->bins), next);
    if (!squeeze)
        add_to(counter, 0, -(int64_t)range.zeros);
}

static size_t at_most(size_t n, size_t most) { return n < most ? n : most; }

/* The piece behind the one from `start` on; behind the last, the first of the next array. */
static Next piece_after(Values x, size_t n, size_t start, Next array)
{
    Next piece = array;
    if (n - start > PIECE)
        piece.at = x + (start + PIECE) * sizeof(float), piece.n = n - start - PIECE;
    piece.n = at_most(piece.n, PIECE);
    return piece;
}

static void add_power(Counter *counter, int64_t *block, Values x, size_t n, Next array)
{
    for (size_t start = 0; start < n; start += PIECE) {
        Next next = piece_after(x, n, start, array);
        add_piece(counter, block, x + start * sizeof(float), at_most(n - start, PIECE), next);
    }
    flush(counter);
}

/* The range of a whole array, NaN and infinities counted and left out. */
static Range whole_range(const Counter *counter, Values x, size_t n, int64_t words[3])
{
    Range total = nothing();
    int finite = 1;
    for (size_t start = 0; start < n; start += PIECE) {
        size_t many = at_most(n - start, PIECE);
        Values piece = x + start * sizeof(float);
        Range range = range_of(counter, piece, many);
        if (!range.finite) {
            piece = keep_finite(piece, &many, counter->work->finite, words);
            range = counter->variant->range(piece, many);
            finite = 0;
        }
        total = join(total, range);
    }
    total.finite = finite;
    return total;
}

static void add_entropy(Counter *counter, int64_t *block, Values x, size_t n, Next array)
{
    int64_t words[3] = {0, 0, 0};
    Range range = whole_range(counter, x, n, words);
    double largest = -range.low > range.high ? -(double)range.low : (double)range.high;
    double width = get_real(block + ENTROPY_WIDTH);
    block[ENTROPY_NANS] += words[0];
    block[ENTROPY_INFS] += words[1] + words[2];
    if (!(largest > 0)) { /* zeros only, or nothing finite */
        block[ENTROPY_ZEROS] += (int64_t)range.zeros;
        return;
    }
    width = width > 0 ? width : largest / ENTROPY_BINS; /* 0: of no batch yet; below, it would never be wide enough */
    for (; largest > width * ENTROPY_BINS; width *= 2)
        fold(counter->counts, ENTROPY_BINS, 1);
    set_real(block + ENTROPY_WIDTH, width);
    int squeeze = worth_squeezing(range.zeros, n);
    for (size_t start = 0; start < n; start += PIECE) {
        size_t many = at_most(n - start, PIECE);
        Values piece = x + start * sizeof(float);
        if (!range.finite)
            piece = keep_finite(piece, &many, counter->work->finite, words);
        reach(counter, 0, ENTROPY_BINS);
        many = counter->variant->quotients(piece, many, width, squeeze, counter->work->bins);
        tally(counter, many, piece_after(x, n, start, array));
    }
    if (squeeze)
        counter->counts[0] += (int64_t)range.zeros;
    flush(counter);
}

/* ---- Python. */

typedef struct {
    int64_t *block;
    int entropy, narrow;
    Values values;
    size_t n;
    Rows rows;                                          /* `lows` NULL: no ranges of channels */
    PyObject *block_owner, *values_owner, *ends_owner; /* capsules: the memory lives as long as they do */
} Job;

typedef struct {
    PyObject *block, *ends, *copy, *array_struct; /* names of attributes */
} Names;

static int is_plain_float32(const ArrayStruct *array)
{
    return array->kind == 'f' && array->item_size == 4 && (array->flags & NATIVE) &&
           (array->flags & (C_ORDER | FORTRAN_ORDER));
}

/* The memory of a histogram into `job`; -1 with an exception where it is not of the form that we know. */
static int open_block(PyObject *histogram, const Names *names, Job *job)
{
    const ArrayStruct *array = NULL;
    const int needed = C_ORDER | ALIGNED | NATIVE | WRITEABLE;
    PyObject *block = PyObject_GetAttr(histogram, names->block);
    if (block == NULL)
        return -1;
    job->block_owner = open_array(block, names->array_struct, &array);
    Py_DECREF(block);
    if (job->block_owner == NULL)
        return -1;
    size_t size = size_of(array);
    if (array->kind != 'i' || array->item_size != 8 || array->dimensions != 1 || (array->flags & needed) != needed ||
        (size != POWER_LENGTH && size != NARROW_LENGTH && size != ENTROPY_LENGTH)) {
        PyErr_SetString(PyExc_TypeError, "the block of a histogram has another form");
        return -1;
    }
    job->block = array->data;
    job->entropy = size == ENTROPY_LENGTH;
    job->narrow = size == NARROW_LENGTH;
    return 0;
}

/* The memory of a plain array into `job`, by way of `flatten` where it is not contiguous float32. */
static int open_values(PyObject *values, PyObject *flatten, const Names *names, Job *job)
{
    const ArrayStruct *array = NULL;
    job->values_owner = open_array(values, names->array_struct, &array);
    if (job->values_owner == NULL)
        return -1;
    if (!is_plain_float32(array)) {
        Py_CLEAR(job->values_owner);
        PyObject *flat = PyObject_CallFunctionObjArgs(flatten, values, NULL);
        if (flat == NULL)
            return -1;
        job->values_owner = open_array(flat, names->array_struct, &array);
        Py_DECREF(flat);
        if (job->values_owner == NULL)
            return -1;
        if (!is_plain_float32(array)) {
            PyErr_SetString(PyExc_TypeError, "a histogram takes float32 or float16");
            return -1;
        }
    }
    job->values = array->data;
    job->n = size_of(array);
    return 0;
}

/* The ends of a range into `job`: float32[2, channels], smallest values first. */
static int open_ends(PyObject *range, const Names *names, Job *job)
{
    const ArrayStruct *array = NULL;
    const int needed = C_ORDER | ALIGNED | NATIVE | WRITEABLE;
    PyObject *ends = PyObject_GetAttr(range, names->ends);
    if (ends == NULL)
        return -1;
    job->ends_owner = open_array(ends, names->array_struct, &array);
    Py_DECREF(ends);
    if (job->ends_owner == NULL)
        return -1;
    if (array->kind != 'f' || array->item_size != 4 || array->dimensions != 2 || array->shape[0] != 2 ||
        (array->flags & needed) != needed) {
        PyErr_SetString(PyExc_TypeError, "the ends of a range have another form");
        return -1;
    }
    job->rows.channels = (size_t)array->shape[1];
    job->rows.lows = array->data;
    job->rows.highs = job->rows.lows + job->rows.channels;
    return 0;
}

/* An array whose channels have ranges: its rows must lie one behind the other, so other orders are copied. */
static int open_ranged(PyObject *values, PyObject *range, PyObject *flatten, const Names *names, Job *job)
{
    const ArrayStruct *array = NULL;
    PyObject *ordered = NULL;
    if (open_ends(range, names, job) < 0)
        return -1;
    PyObject *owner = open_array(values, names->array_struct, &array);
    if (owner == NULL)
        return -1;
    if (array->dimensions < 2 || (size_t)array->shape[1] != job->rows.channels) {
        PyErr_Format(PyExc_ValueError, "an array without %zu channels on axis 1", job->rows.channels);
        Py_DECREF(owner);
        return -1;
    }
    size_t rows = (size_t)array->shape[0] * job->rows.channels;
    job->rows.length = job->rows.left = rows ? size_of(array) / rows : 0;
    ordered = array->flags & C_ORDER ? Py_NewRef(values) : PyObject_CallMethodObjArgs(values, names->copy, NULL);
    Py_DECREF(owner);
    if (ordered == NULL)
        return -1;
    int status = open_values(ordered, flatten, names, job);
    Py_DECREF(ordered);
    if (status == 0 && job->n != rows * job->rows.length) { /* what `flatten` or `copy` gave is no copy of it */
        PyErr_SetString(PyExc_ValueError, "an array of another size than its axes say");
        return -1;
    }
    return status;
}

/* What is called into the cache while the last piece of an array is counted. */
static Next array_after(const Job *jobs, Py_ssize_t many, Py_ssize_t i)
{
    Next next = {NULL, 0};
    if (i + 1 < many)
        next.at = jobs[i + 1].values, next.n = jobs[i + 1].n;
    return next;
}

static void run_jobs(const Variant *variant, Job *jobs, Py_ssize_t many, Workspace *work)
{
    for (Py_ssize_t i = 0; i < many; i++) {
        Job *job = jobs + i;
        size_t bins = job->entropy ? ENTROPY_BINS : SIDES * BINS;
        Counter counter = counter_of(variant, work, job->block + WORDS, bins, job->n, job->narrow);
        counter.rows = job->rows.lows ? &job->rows : NULL;
        (job->entropy ? add_entropy : add_power)(&counter, job->block, job->values, job->n, array_after(jobs, many, i));
    }
}

/* What goes into one call: tuples of our own, so that what other threads do to the caller's lists is nothing to us. */
typedef struct {
    PyObject *histograms, *arrays, *ranges; /* `ranges` NULL: there are none */
    PyObject *flatten;
} Batch;

static int open_job(const Batch *batch, Py_ssize_t i, const Names *names, Job *job)
{
    PyObject *range = batch->ranges ? PyTuple_GetItem(batch->ranges, i) : Py_None;
    PyObject *values = PyTuple_GetItem(batch->arrays, i);
    if (open_block(PyTuple_GetItem(batch->histograms, i), names, job) < 0)
        return -1;
    if (range != Py_None)
        return open_ranged(values, range, batch->flatten, names, job);
    return open_values(values, batch->flatten, names, job);
}

/* Every job made ready before the first is run: an array of a wrong type leaves all histograms as they were. */
static int add_jobs(const Batch *batch, const Variant *variant, const Names *names)
{
    Py_ssize_t many = PyTuple_Size(batch->histograms);
    int status = -1;
    Job *jobs = PyMem_Calloc((size_t)many + 1, sizeof *jobs);
    Workspace *work = PyMem_Malloc(sizeof *work);
    if (jobs == NULL || work == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    size_t largest = 0;
    for (Py_ssize_t i = 0; i < many; i++) {
        if (open_job(batch, i, names, jobs + i) < 0)
            goto done;
        largest = jobs[i].n > largest ? jobs[i].n : largest;
    }
    if (largest >= TABLES_FROM) {
        memset(work->first, 0, sizeof work->first);
        memset(work->second, 0, sizeof work->second);
    }
    Py_BEGIN_ALLOW_THREADS
    run_jobs(variant, jobs, many, work);
    Py_END_ALLOW_THREADS
    status = 0;
done:
    for (Py_ssize_t i = 0; jobs != NULL && i < many; i++) {
        Py_XDECREF(jobs[i].block_owner);
        Py_XDECREF(jobs[i].values_owner);
        Py_XDECREF(jobs[i].ends_owner);
    }
    PyMem_Free(jobs);
    PyMem_Free(work);
    return status;
}

static int same_lengths(const Batch *batch)
{
    Py_ssize_t many = PyTuple_Size(batch->histograms), arrays = PyTuple_Size(batch->arrays);
    if (many != arrays)
        PyErr_Format(PyExc_ValueError, "%zd histograms, but %zd arrays", many, arrays);
    else if (batch->ranges && PyTuple_Size(batch->ranges) != many)
        PyErr_Format(PyExc_ValueError, "%zd histograms, but %zd ranges", many, PyTuple_Size(batch->ranges));
    return !PyErr_Occurred();
}

static PyObject *add_all(PyObject *module, PyObject *args)
{
    PyObject *histograms, *arrays, *flatten, *ranges = Py_None;
    int choice = 0, status = -1;
    const Variant *found[2];
    if (!PyArg_ParseTuple(args, "OOO|iO", &histograms, &arrays, &flatten, &choice, &ranges))
        return NULL;
    if (choice < 0 || choice >= available(found)) {
        PyErr_SetString(PyExc_ValueError, "no such variant on this processor");
        return NULL;
    }
    Batch batch = {PySequence_Tuple(histograms), NULL, NULL, flatten};
    if (batch.histograms != NULL)
        batch.arrays = PySequence_Tuple(arrays);
    if (batch.arrays != NULL && ranges != Py_None)
        batch.ranges = PySequence_Tuple(ranges);
    if (!PyErr_Occurred() && same_lengths(&batch))
        status = add_jobs(&batch, found[choice], PyModule_GetState(module));
    Py_XDECREF(batch.histograms);
    Py_XDECREF(batch.arrays);
    Py_XDECREF(batch.ranges);
    if (status < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *variants(PyObject *module, PyObject *nothing_given)
{
    const Variant *found[2];
    int many = available(found);
    PyObject *names = PyTuple_New(many);
    (void)module, (void)nothing_given;
    for (int i = 0; names != NULL && i < many; i++) {
        PyObject *name = PyUnicode_FromString(found[i]->name);
        if (name == NULL || PyTuple_SetItem(names, i, name) < 0)
            Py_CLEAR(names);
    }
    return names;
}

static PyMethodDef METHODS[] = {
    {"add_all", add_all, METH_VARARGS,
     "add_all(histograms, arrays, flatten, variant=0, ranges=None): count arrays[i] into histograms[i]; see kernel.py."},
    {"divergences", divergences, METH_VARARGS,
     "divergences(sums, kept, sure, values): fill values, float64[K]; see entropy_search.py."},
    {"lay_out_side", lay_out_side, METH_VARARGS,
     "lay_out_side(counts, width, top, block): fill block; whether there is a value. See squared_errors.py."},
    {"squared_errors", squared_errors, METH_VARARGS,
     "squared_errors(scales, sides, most, errors): fill errors, float64[N]; see squared_errors.py."},
    {"variants", variants, METH_NOARGS, "variants(): names of the variants that this processor runs, best first."},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *module)
{
    Names *names = PyModule_GetState(module);
#ifdef HAVE_AVX2
    fill_front();
#endif
    names->block = PyUnicode_InternFromString("block");
    names->ends = PyUnicode_InternFromString("ends");
    names->copy = PyUnicode_InternFromString("copy");
    names->array_struct = PyUnicode_InternFromString("__array_struct__");
    if (names->block == NULL || names->ends == NULL || names->copy == NULL || names->array_struct == NULL)
        return -1;
    return PyModule_AddIntConstant(module, "LAYOUT", LAYOUT);
}

static void leave(void *module)
{
    Names *names = PyModule_GetState(module);
    if (names != NULL) {
        Py_CLEAR(names->block);
        Py_CLEAR(names->ends);
        Py_CLEAR(names->copy);
        Py_CLEAR(names->array_struct);
    }
}

static PyModuleDef_Slot SLOTS[] = {{Py_mod_exec, prepare}, {0, NULL}};

static PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_kernel", "Counting values into histograms; see kernel.py.", sizeof(Names), METHODS, SLOTS,
    NULL,                  NULL,      leave,
};

PyMODINIT_FUNC PyInit__kernel(void) { return PyModuleDef_Init(&MODULE); }
