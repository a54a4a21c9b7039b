/*
 * dispatch.c - which kernel table runs. The list of levels below is the list: dispatch, mla_isa_list(),
 * mla_kernel_list() and the tests are derived from it.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/environment.h"
#include "core/status.h"
#include "features.h"
#include "kernels_fixed.h"
#include "mla/mla.h"

typedef struct level {
    const mla_cpu_kernels *kernels;
    bool (*usable)(const mla_cpu_features *features);
} level;

static bool always(const mla_cpu_features *features)
{
    (void)features;
    return true;
}

#if defined(__x86_64__)
static bool has_avx2(const mla_cpu_features *features)
{
    return features->avx2;
}

static bool has_avxvnni(const mla_cpu_features *features)
{
    return features->avxvnni;
}

static bool has_avx512(const mla_cpu_features *features)
{
    return features->avx512;
}

static bool has_avx512bf16(const mla_cpu_features *features)
{
    return features->avx512bf16;
}

static bool has_amx(const mla_cpu_features *features)
{
    return features->amx;
}
#endif

#if defined(__aarch64__)
static bool has_neonbf16(const mla_cpu_features *features)
{
    return features->neonbf16;
}
#endif

/* From low to high. */
static const level levels[] = {
    {&mla_kernels_scalar, always},
#if defined(__x86_64__)
    {&mla_kernels_avx2, has_avx2},     {&mla_kernels_avxvnni, has_avxvnni},
    {&mla_kernels_avx512, has_avx512}, {&mla_kernels_avx512bf16, has_avx512bf16},
    {&mla_kernels_amx, has_amx},
#elif defined(__aarch64__)
    {&mla_kernels_neon, always}, /* part of the architecture */
    {&mla_kernels_neonbf16, has_neonbf16},
#endif
};
enum { LEVEL_COUNT = sizeof levels / sizeof *levels, TABLE_SIZE = 9 * MLA_FORMAT_COUNT + 18 };

/* One kernel of a table. Any function pointer may be converted to another function pointer type and compared. */
typedef void (*any_kernel)(void);
typedef struct table_entry {
    const char *kind, *type;
    any_kernel kernel;
} table_entry;

static size_t list_table(const mla_cpu_kernels *k, table_entry entry[TABLE_SIZE])
{
    static const char *const types[MLA_FORMAT_COUNT] = {"f32", "f16", "bf16", "hif8", "i8"};
    size_t n = 0;
    for (int f = 0; f < MLA_FORMAT_COUNT; f++) {
        entry[n++] = (table_entry){"load", types[f], (any_kernel)k->load[f]};
        entry[n++] = (table_entry){"pack", types[f], (any_kernel)k->pack[f]};
        const table_entry optional[] = {{"store", types[f], (any_kernel)k->store[f]},
                                        {"stream", types[f], (any_kernel)k->stream[f]},
                                        {"load_qk", types[f], (any_kernel)k->load_qk[f]},
                                        {"qk_rows", types[f], (any_kernel)k->qk_rows[f]},
                                        {"pv_rows", types[f], (any_kernel)k->pv_rows[f]},
                                        {"round", types[f], (any_kernel)k->round[f]}};
        for (size_t i = 0; i < sizeof optional / sizeof *optional; i++) {
            if (optional[i].kernel) {
                entry[n++] = optional[i];
            }
        }
    }
    entry[n++] = (table_entry){"qk", "f32", (any_kernel)k->qk};
    entry[n++] = (table_entry){"softmax", "f32", (any_kernel)k->softmax};
    entry[n++] = (table_entry){"peak", "f32", (any_kernel)k->peak};
    entry[n++] = (table_entry){"pv", "f32", (any_kernel)k->pv};
    entry[n++] = (table_entry){"merge", "f32", (any_kernel)k->merge};
    entry[n++] = (table_entry){"encode", "hif8", (any_kernel)k->hif8_encode};
    entry[n++] = (table_entry){"decode", "hif8", (any_kernel)k->hif8_decode};
    if (k->fixed) {
        for (int f = 0; f < MLA_FORMAT_COUNT; f++) {
            if (k->fixed->norm[f]) {
                entry[n++] = (table_entry){"fixed_norm", types[f], (any_kernel)k->fixed->norm[f]};
            }
        }
        entry[n++] = (table_entry){"fixed_keys", "f32", (any_kernel)k->fixed->keys};
        entry[n++] = (table_entry){"fixed_query", "f32", (any_kernel)k->fixed->query};
        entry[n++] = (table_entry){"fixed_qk", "i16", (any_kernel)k->fixed->qk};
        entry[n++] = (table_entry){"fixed_p", "f32", (any_kernel)k->fixed->p};
        entry[n++] = (table_entry){"fixed_pv", "i16", (any_kernel)k->fixed->pv};
    }
    if (k->bf16.qk) {
        entry[n++] = (table_entry){"qpairs", "bf16", (any_kernel)k->bf16.qpairs};
        entry[n++] = (table_entry){"vpairs", "bf16", (any_kernel)k->bf16.vpairs};
        entry[n++] = (table_entry){"ppairs", "bf16", (any_kernel)k->bf16.ppairs};
        entry[n++] = (table_entry){"qk", "bf16", (any_kernel)k->bf16.qk};
        entry[n++] = (table_entry){"pv", "bf16", (any_kernel)k->bf16.pv};
        if (k->bf16.vpairs_pv) {
            entry[n++] = (table_entry){"vpairs_pv", "bf16", (any_kernel)k->bf16.vpairs_pv};
        }
    }
    return n;
}

static bool table_has(const mla_cpu_kernels *k, any_kernel kernel)
{
    table_entry entry[TABLE_SIZE];
    size_t n = list_table(k, entry);
    for (size_t i = 0; i < n; i++) {
        if (entry[i].kernel == kernel) {
            return true;
        }
    }
    return false;
}

/* Written once, then read-only. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static mla_cpu_features features;
static char kernel_name[LEVEL_COUNT * TABLE_SIZE][40];
static mla_kernel_info kernel_info[LEVEL_COUNT * TABLE_SIZE];
static any_kernel kernel_address[LEVEL_COUNT * TABLE_SIZE];
static size_t kernel_count;
static char environment[MLA_WORD_BYTES]; /* MLA_ISA when it was first looked at */

/* -1: the best usable level. An int is set and read whole. */
static int chosen = -1;

static void detect(void)
{
    features = mla_cpu_features_detect();
    for (size_t i = 0; i < LEVEL_COUNT; i++) {
        const mla_cpu_kernels *k = levels[i].kernels;
        table_entry entry[TABLE_SIZE];
        size_t n = list_table(k, entry);
        for (size_t e = 0; e < n; e++) {
            if (i > 0 && table_has(levels[i - 1].kernels, entry[e].kernel)) {
                continue; /* taken over from the level below, under whose name it is listed */
            }
            snprintf(kernel_name[kernel_count], sizeof kernel_name[0], "mla_%s_%s_%s", entry[e].kind, entry[e].type,
                     k->isa);
            kernel_info[kernel_count] =
                (mla_kernel_info){.name = kernel_name[kernel_count], .kind = entry[e].kind, .isa = k->isa};
            kernel_address[kernel_count++] = entry[e].kernel;
        }
    }
    mla_environment_word("MLA_ISA", environment);
}

static int find_level(const char *isa)
{
    for (int i = 0; i < LEVEL_COUNT; i++) {
        if (strcmp(levels[i].kernels->isa, isa) == 0) {
            return i;
        }
    }
    return -1;
}

static bool level_usable(int i)
{
    return i >= 0 && levels[i].usable(&features);
}

static mla_status check_level(const char *source, const char *isa)
{
    int i = find_level(isa);
    if (i < 0) {
        char names[16 * LEVEL_COUNT] = "";
        for (size_t k = 0, end = 0; k < LEVEL_COUNT; k++) {
            end += (size_t)snprintf(names + end, sizeof names - end, "%s%s", k > 0 ? ", " : "", levels[k].kernels->isa);
        }
        return mla_fail(MLA_STATUS_BAD_VALUE, "%s = \"%s\" is not a level of this build: %s", source, isa, names);
    }
    if (!level_usable(i)) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "%s = \"%s\" cannot be used on this machine", source, isa);
    }
    return MLA_STATUS_OK;
}

/* Index of the level in use, -1 when MLA_ISA is wrong. */
static int selected_level(void)
{
    pthread_once(&once, detect);
    int i = __atomic_load_n(&chosen, __ATOMIC_RELAXED);
    if (i >= 0) {
        return i;
    }
    if (environment[0]) {
        return check_level("MLA_ISA", environment) == MLA_STATUS_OK ? find_level(environment) : -1;
    }
    for (i = LEVEL_COUNT - 1; !level_usable(i); i--) {
    }
    return i;
}

const mla_cpu_kernels *mla_cpu_kernels_selected(void)
{
    int i = selected_level();
    return i < 0 ? NULL : levels[i].kernels;
}

const mla_cpu_kernels *mla_cpu_kernels_below(const mla_cpu_kernels *kernels)
{
    int i = find_level(kernels->isa);
    return levels[i > 0 ? i - 1 : 0].kernels;
}

const mla_cpu_kernels *mla_cpu_kernels_of(const char *isa)
{
    pthread_once(&once, detect);
    int i = find_level(isa);
    return level_usable(i) ? levels[i].kernels : NULL;
}

mla_status mla_set_isa(const char *name)
{
    pthread_once(&once, detect);
    if (name) {
        MLA_TRY(check_level("name", name));
    }
    __atomic_store_n(&chosen, name ? find_level(name) : -1, __ATOMIC_RELAXED);
    return MLA_STATUS_OK;
}

size_t mla_isa_list(mla_isa_info *info, size_t capacity)
{
    int selected = selected_level();
    for (int i = 0; info && i < LEVEL_COUNT && (size_t)i < capacity; i++) {
        info[i] = (mla_isa_info){.name = levels[i].kernels->isa, .usable = level_usable(i), .selected = i == selected};
    }
    return LEVEL_COUNT;
}

size_t mla_kernel_list(mla_kernel_info *info, size_t capacity)
{
    const mla_cpu_kernels *selected = mla_cpu_kernels_selected();
    for (size_t i = 0; info && i < kernel_count && i < capacity; i++) {
        info[i] = kernel_info[i];
        info[i].selected = selected && table_has(selected, kernel_address[i]);
    }
    return kernel_count;
}
