/*
 * bench_report.c - the table and the JSON file; see bench.h.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__GLIBC__)
#include <gnu/libc-version.h>
#endif

#include <cjson/cJSON.h>

#include "bench.h"
#include "ceiling.h"
#include "cli.h"
#include "machine.h"
#include "terminal.h"

/* ---- table ------------------------------------------------------------------------------------------------------- */

static void print_nothing(void)
{
    printf("  %-17s", "-");
}

/* A ratio between neighbours in time; of neighbours that were interrupted it means nothing. */
static void print_ratio(const bench_result *r, const bench_spread *s, double unit, int digits)
{
    if (r->disturbed) {
        print_nothing();
        return;
    }
    char text[48];
    snprintf(text, sizeof text, "%.*f (%.*f-%.*f)", digits, s->median * unit, digits, s->low * unit, digits,
             s->high * unit);
    printf("  %-17s", text);
}

void bench_print_header(bench_kind kind, const bench_settings *settings)
{
    printf("\n%s", style(STYLE_FAINT));
    switch (kind) {
    case BENCH_SPEED:
        printf("%-40s %3s %10s %8s  %-17s  %-17s", "shape", "thr", "time", "GFLOP/s", "% of FMA peak",
               "% of read peak");
        for (int32_t i = 0; i < BENCH_MAX_RIVAL; i++) {
            if (settings->rival[i] != NULL) {
                char title[32];
                snprintf(title, sizeof title, "x %s", rival_name(settings->rival[i]));
                printf("  %-17s", title);
            }
        }
        printf("  %s", "error");
        break;
    case BENCH_FORMAT:
        printf("%-40s %3s %10s %8s  %-17s  %s", "shape", "thr", "time", "GFLOP/s", "x plain bf16", "error");
        break;
    case BENCH_SCALING:
        printf("%-40s %3s %10s %8s  %-17s  %s", "shape", "thr", "time", "GFLOP/s", "x one thread", "error");
        break;
    case BENCH_EXECUTOR:
        printf("%-40s %3s %10s %8s  %-17s  %s", "shape, on threads lent by the host", "thr", "time", "GFLOP/s",
               "x OpenMP", "error");
        break;
    case BENCH_GPU:
        printf("%-40s %10s %8s %7s  %-17s  %-7s  %s", "shape", "time", "TFLOP/s", "TB/s", "% of copying", "error",
               "kernel");
        break;
    case BENCH_GROWTH:
        printf("%-40s %3s %10s %8s  %-17s  %s", "shape", "thr", "time", "GFLOP/s", "per key, 4k = 1", "error");
        break;
    }
    printf("%s\n", style(STYLE_PLAIN));
}

static void print_gpu_row(const bench_result *r)
{
    char time_text[32];
    printf("%-40s %10s %8.1f %7.2f", r->name, text_seconds(r->seconds.median, time_text),
           r->flops / r->seconds.median * 1e-12, r->bytes / r->seconds.median * 1e-12);
    print_ratio(r, &r->of_read, 100, 0);
    printf("  %s%.1e%s%s  %s\n", style(r->correct ? STYLE_PLAIN : STYLE_BAD), r->error, r->correct ? "" : " WRONG",
           style(STYLE_PLAIN), r->kernel);
}

static void print_cpu_row(const bench_result *r, const bench_settings *settings)
{
    char time_text[32];
    printf("%-40s %3d %10s %8.1f", r->name, (int)r->n_thread, text_seconds(r->seconds.median, time_text),
           r->flops / r->seconds.median * 1e-9);
    if (r->what->kind != BENCH_SPEED) {
        print_ratio(r, &r->ratio, 1, 2);
    } else {
        print_ratio(r, &r->of_peak, 100, 0);
        if (r->what->from_memory) {
            print_ratio(r, &r->of_read, 100, 0);
        } else {
            print_nothing();
        }
        for (int32_t i = 0; i < BENCH_MAX_RIVAL; i++) {
            if (r->rival[i].measured) {
                print_ratio(r, &r->rival[i].ratio, 1, 2);
            } else if (settings->rival[i] != NULL) {
                print_nothing();
            }
        }
    }
    const char *note = r->disturbed ? "  disturbed" : r->own_cores < BENCH_OWN_CORES ? "  threads share cores" : "";
    printf("  %s%.1e%s%s%s\n", style(r->correct ? STYLE_PLAIN : STYLE_BAD), r->error, r->correct ? "" : " WRONG",
           style(STYLE_PLAIN), note);
}

void bench_print_row(const bench_result *r, const bench_settings *settings)
{
    if (r->what->kind == BENCH_GPU) {
        print_gpu_row(r);
    } else {
        print_cpu_row(r, settings);
    }
    if (!r->correct) {
        printf("    %s\n", r->fault);
    }
    fflush(stdout);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void add_spread(cJSON *parent, const char *name, const bench_spread *s)
{
    cJSON *item = cJSON_AddObjectToObject(parent, name);
    cJSON_AddNumberToObject(item, "median", s->median);
    cJSON_AddNumberToObject(item, "low", s->low);
    cJSON_AddNumberToObject(item, "high", s->high);
}

static void add_raw(cJSON *parent, const char *name, const double *value, int32_t n)
{
    cJSON_AddItemToObject(parent, name, cJSON_CreateDoubleArray(value, n));
}

/* Every iteration, in order, also those that do not count. */
static cJSON *build_raw(const bench_result *r)
{
    const bench_raw *raw = &r->raw;
    cJSON *item = cJSON_CreateObject();
    cJSON *good = cJSON_AddArrayToObject(item, "undisturbed");
    for (int32_t i = 0; i < raw->n; i++) {
        cJSON_AddItemToArray(good, cJSON_CreateBool(raw->good[i]));
    }
    add_raw(item, "seconds", raw->seconds, raw->n);
    if (r->what->kind == BENCH_GPU) {
        add_raw(item, "copy_gb_per_s", raw->read, raw->n);
    } else if (r->what->kind == BENCH_SPEED) {
        add_raw(item, "fma_peak_gflops", raw->peak, raw->n);
        if (r->what->from_memory) {
            add_raw(item, "read_gb_per_s", raw->read, raw->n);
        }
    } else {
        add_raw(item, "ratio", raw->ratio, raw->n);
    }
    return item;
}

static cJSON *build_shape(const bench_case *c)
{
    const paged_shape *s = &c->shape;
    bool ascend = c->ascend != ASCEND_NONE;
    cJSON *item = cJSON_CreateObject();
    cJSON_AddNumberToObject(item, "requests", (double)s->n_seq);
    cJSON_AddNumberToObject(item, "query_tokens", (double)s->n_q);
    cJSON_AddNumberToObject(item, "heads", (double)s->n_head);
    cJSON_AddNumberToObject(item, "d_k", (double)s->d_k);
    cJSON_AddNumberToObject(item, "d_v", (double)s->d_v);
    cJSON_AddNumberToObject(item, "page_size", (double)s->page_size);
    cJSON_AddNumberToObject(item, "keys", (double)s->n_key);
    cJSON_AddBoolToObject(item, "ragged", s->ragged);
    cJSON_AddBoolToObject(item, "causal", s->causal);
    cJSON_AddStringToObject(item, "dtype", mla_dtype_name(ascend ? ascend_kind_dtype(c->ascend) : s->dtype));
    if (ascend) {
        cJSON_AddStringToObject(item, "ascend", ascend_kind_name(c->ascend));
    }
    return item;
}

static cJSON *build_result(const bench_result *r, const bench_settings *settings)
{
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "name", r->name);
    cJSON_AddStringToObject(item, "kind", bench_kind_name(r->what->kind));
    cJSON_AddItemToObject(item, "shape", build_shape(r->what));
    cJSON_AddBoolToObject(item, "from_memory", r->what->from_memory);
    cJSON_AddNumberToObject(item, "cache_copies", (double)r->n_copy);
    if (r->what->kind == BENCH_GPU) {
        cJSON_AddStringToObject(item, "kernel", r->kernel);
    } else {
        cJSON_AddNumberToObject(item, "threads", r->n_thread);
    }
    cJSON_AddNumberToObject(item, "flops", r->flops);
    cJSON_AddNumberToObject(item, r->what->kind == BENCH_GPU ? "bytes" : "key_bytes", r->bytes);
    cJSON_AddNumberToObject(item, "workspace_bytes", (double)r->workspace_bytes);
    cJSON_AddNumberToObject(item, "samples", r->n_sample);
    cJSON_AddNumberToObject(item, "discarded", r->n_discarded);
    cJSON_AddBoolToObject(item, "disturbed", r->disturbed);
    cJSON_AddNumberToObject(item, "of_own_cores", r->own_cores);
    cJSON_AddBoolToObject(item, "correct", r->correct);
    if (!r->correct) {
        cJSON_AddStringToObject(item, "fault", r->fault);
    }
    cJSON_AddNumberToObject(item, "error_normwise", r->error);
    add_spread(item, "seconds", &r->seconds);
    cJSON_AddNumberToObject(item, "gflops", r->flops / r->seconds.median * 1e-9);
    if (r->what->kind == BENCH_FORMAT) {
        add_spread(item, "time_against_plain_bf16", &r->ratio);
    } else if (r->what->kind == BENCH_SCALING) {
        add_spread(item, "times_one_thread", &r->ratio);
    } else if (r->what->kind == BENCH_EXECUTOR) {
        add_spread(item, "times_openmp", &r->ratio);
    } else if (r->what->kind == BENCH_GROWTH) {
        add_spread(item, "time_per_key_against_4096", &r->ratio);
    } else if (r->what->kind == BENCH_GPU) {
        add_spread(item, "of_copying", &r->of_read);
        add_spread(item, "copy_gb_per_s", &r->read);
    } else {
        add_spread(item, "of_fma_peak", &r->of_peak);
        add_spread(item, "fma_peak_gflops", &r->peak);
        if (r->what->from_memory) {
            add_spread(item, "of_read_bandwidth", &r->of_read);
            add_spread(item, "read_gb_per_s", &r->read);
        }
        cJSON *rivals = cJSON_AddArrayToObject(item, "rivals");
        for (int32_t i = 0; i < BENCH_MAX_RIVAL; i++) {
            const bench_rival_result *found = &r->rival[i];
            if (found->measured) {
                cJSON *entry = cJSON_CreateObject();
                cJSON_AddStringToObject(entry, "name", rival_name(settings->rival[i]));
                cJSON_AddNumberToObject(entry, "block_keys", (double)found->block);
                add_spread(entry, "seconds", &found->seconds);
                add_spread(entry, "times_ours", &found->ratio);
                cJSON_AddNumberToObject(entry, "difference_normwise", found->difference);
                add_raw(entry, "raw_seconds", found->sample, r->raw.n);
                cJSON_AddItemToArray(rivals, entry);
            }
        }
    }
    cJSON_AddItemToObject(item, "raw", build_raw(r));
    return item;
}

#if defined(__clang__)
static const char compiler[] = __VERSION__; /* says its name itself */
#else
static const char compiler[] = "gcc " __VERSION__;
#endif

static const char *libc_version(void)
{
#if defined(__GLIBC__)
    static char text[32];
    snprintf(text, sizeof text, "glibc %s", gnu_get_libc_version());
    return text;
#else
    return "unknown";
#endif
}

static cJSON *build_root(const char *command, const bench_settings *settings)
{
    const machine *m = machine_get();
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "tool", "mla bench");
    cJSON_AddStringToObject(root, "version", mla_version());
    cJSON_AddStringToObject(root, "compiler", compiler);
    cJSON_AddStringToObject(root, "libc", libc_version());
    cJSON_AddStringToObject(root, "date", settings->date);
    cJSON_AddStringToObject(root, "command", command);
    cJSON_AddStringToObject(root, "isa", settings->isa);
    cJSON_AddStringToObject(root, "fma_peak_of", ceiling_name(settings->isa));
    cJSON *hardware = cJSON_AddObjectToObject(root, "hardware");
    cJSON_AddStringToObject(hardware, "cpu", m->cpu);
    cJSON_AddStringToObject(hardware, "features", m->features);
    cJSON_AddNumberToObject(hardware, "cpus", m->n_cpu);
    cJSON_AddNumberToObject(hardware, "cores", m->n_core);
    cJSON_AddNumberToObject(hardware, "l1d_bytes", (double)m->l1d_bytes);
    cJSON_AddNumberToObject(hardware, "l2_bytes", (double)m->l2_bytes);
    cJSON_AddNumberToObject(hardware, "l3_bytes", (double)m->l3_bytes);
    cJSON_AddNumberToObject(hardware, "memory_bytes", (double)m->memory_bytes);
    cJSON_AddStringToObject(hardware, "system", m->system);
    if (settings->gpu != NULL) {
        cJSON_AddStringToObject(hardware, "gpu", settings->gpu);
    }
    cJSON *load = cJSON_AddObjectToObject(root, "load_average");
    cJSON_AddNumberToObject(load, "start", settings->load);
    cJSON_AddNumberToObject(load, "end", cli_load());
    cJSON *libraries = cJSON_AddObjectToObject(root, "rivals");
    for (int32_t i = 0; i < BENCH_MAX_RIVAL; i++) {
        if (settings->rival[i] != NULL) {
            cJSON_AddStringToObject(libraries, rival_name(settings->rival[i]), rival_detail(settings->rival[i]));
        }
    }
    return root;
}

bool bench_write_json(const char *path, const char *command, const bench_settings *settings, const bench_result *result,
                      int32_t n_result, char *error, size_t error_size)
{
    cJSON *root = build_root(command, settings);
    cJSON *list = cJSON_AddArrayToObject(root, "results");
    for (int32_t i = 0; i < n_result; i++) {
        cJSON_AddItemToArray(list, build_result(&result[i], settings));
    }
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    if (text == NULL) {
        snprintf(error, error_size, "not enough memory");
        return false;
    }
    FILE *stream = fopen(path, "w");
    bool good = stream != NULL && fputs(text, stream) >= 0 && fputc('\n', stream) != EOF;
    if (stream != NULL && fclose(stream) != 0) {
        good = false;
    }
    if (!good) {
        snprintf(error, error_size, "cannot write it: %s", strerror(errno));
    }
    cJSON_free(text);
    return good;
}
