/*
 * dispatch.c - which kernel table runs. The list of levels below is the list: dispatch, mla_isa_list(), mla_kernel_list()
 * and the tests are derived from it.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "features.h"
#include "kernels.h"
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
#endif

/* From low to high. */
static const level levels[] = {
    {&mla_kernels_scalar, always},
#if defined(__x86_64__)
    {&mla_kernels_avx2, has_avx2},
#endif
};
enum { LEVEL_COUNT = sizeof levels / sizeof *levels, KERNEL_MAX = LEVEL_COUNT * (4 * MLA_FORMAT_COUNT + 4) };

/* Written once, then read-only. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static mla_cpu_features features;
static char kernel_names[KERNEL_MAX][40];
static mla_kernel_info kernel_infos[KERNEL_MAX];
static size_t kernel_count;
static char environment[32]; /* MLA_ISA when it was first looked at */

/* -1: the best usable level. An int is set and read whole. */
static int chosen = -1;

static void add_kernel(const char *kind, const char *type, const char *isa)
{
    snprintf(kernel_names[kernel_count], sizeof kernel_names[0], "mla_%s_%s_%s", kind, type, isa);
    kernel_infos[kernel_count] = (mla_kernel_info){.name = kernel_names[kernel_count], .kind = kind, .isa = isa};
    kernel_count++;
}

static void detect(void)
{
    static const char *const types[MLA_FORMAT_COUNT] = {"f32", "f16", "bf16"};
    features = mla_cpu_features_detect();
    for (size_t i = 0; i < LEVEL_COUNT; i++) {
        const mla_cpu_kernels *k = levels[i].kernels;
        for (int f = 0; f < MLA_FORMAT_COUNT; f++) {
            add_kernel("load", types[f], k->isa);
            add_kernel("pack", types[f], k->isa);
            add_kernel("store", types[f], k->isa);
        }
        for (int f = 0; f < MLA_FORMAT_COUNT && k->stream[f]; f++) {
            add_kernel("stream", types[f], k->isa);
        }
        add_kernel("qk", "f32", k->isa);
        add_kernel("softmax", "f32", k->isa);
        add_kernel("pv", "f32", k->isa);
        add_kernel("merge", "f32", k->isa);
    }
    const char *wanted = getenv("MLA_ISA");
    snprintf(environment, sizeof environment, "%s", wanted ? wanted : "");
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
        return mla_fail(MLA_STATUS_BAD_VALUE, "%s = \"%s\" is not a level of this build", source, isa);
    }
    if (!level_usable(i)) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "%s = \"%s\" cannot be used on this processor", source, isa);
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
        info[i] = kernel_infos[i];
        info[i].selected = selected && strcmp(selected->isa, kernel_infos[i].isa) == 0;
    }
    return kernel_count;
}
