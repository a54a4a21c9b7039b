/*
 * cmd_info.c - mla info: what this machine and this build can do.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "cli.h"
#include "machine.h"
#include "terminal.h"

static const char help[] =
    "Usage: mla info [--json]\n"
    "\n"
    "Shows the version, the CPU and what it offers, the instruction set levels that are compiled in, usable and in\n"
    "use, the arithmetic of a bf16 decode step, the kernels chosen, threads, GPUs, and the environment variables in\n"
    "effect.\n"
    "\n"
    "Options:\n"
    "      --json   print one JSON object instead of text\n"
    "  -h, --help   show this help\n"
    "\n"
    "Examples:\n"
    "  mla info\n"
    "  MLA_ISA=scalar mla info\n"
    "  mla info --json | jq .isa\n";

#define MAX_ISA 32
#define MAX_KERNEL 512
#define MAX_GPU 64

static const char *const variables[] = {"MLA_ISA",         "MLA_ARITH",        "MLA_ATB",       "MLA_DEVICE",
                                        "MLA_DEBUG",       "OMP_NUM_THREADS",  "OMP_PROC_BIND", "OMP_PLACES",
                                        "OMP_WAIT_POLICY", "GOMP_CPU_AFFINITY"};

#define N_VARIABLE (sizeof variables / sizeof variables[0])

typedef struct facts {
    const machine *machine;
    mla_isa_info isa[MAX_ISA];
    size_t n_isa;
    mla_kernel_info kernel[MAX_KERNEL];
    size_t n_kernel;
    int32_t n_thread;       /* that a call without options uses */
    const char *arithmetic; /* of a bf16 decode step that asks for none */
    mla_gpu_info gpu[MAX_GPU];
    size_t n_gpu;
    char no_gpu[512]; /* why there is none */
} facts;

/* What the library chooses for 16 heads of 576/512, everything bf16; a plan reads lengths alone, and here are none. */
static const char *choose_arithmetic(void)
{
    enum { HEADS = 16, D_K = 576, D_V = 512, PAGE = 64 };
    static uint16_t q[HEADS * D_K], k[PAGE * D_K], o[HEADS * D_V];
    mla_problem p;
    mla_problem_init(&p);
    p.q = mla_tensor_make(q, MLA_DTYPE_BF16, 4, (int64_t[]){1, 1, HEADS, D_K});
    p.segment[0].k = mla_tensor_make(k, MLA_DTYPE_BF16, 4, (int64_t[]){1, PAGE, 1, D_K});
    p.d_v = D_V;
    p.softmax_scale = 1;
    p.o = mla_tensor_make(o, MLA_DTYPE_BF16, 4, (int64_t[]){1, 1, HEADS, D_V});
    mla_plan *plan;
    mla_plan_info info;
    if (mla_plan_build(&p, NULL, &plan) != MLA_STATUS_OK) {
        return "unknown";
    }
    bool known = mla_plan_describe(plan, &info) == MLA_STATUS_OK;
    mla_plan_free(plan);
    return known ? cli_arithmetic_name(info.arithmetic) : "unknown";
}

static void gather(facts *f)
{
    *f = (facts){.machine = machine_get()};
    f->n_isa = mla_isa_list(f->isa, MAX_ISA);
    f->n_isa = f->n_isa < MAX_ISA ? f->n_isa : MAX_ISA;
    f->n_kernel = mla_kernel_list(f->kernel, MAX_KERNEL);
    f->n_kernel = f->n_kernel < MAX_KERNEL ? f->n_kernel : MAX_KERNEL;
    f->n_thread = mla_default_threads();
    f->arithmetic = choose_arithmetic();
    f->n_gpu = mla_gpu_list(f->gpu, MAX_GPU);
    f->n_gpu = f->n_gpu < MAX_GPU ? f->n_gpu : MAX_GPU;
    snprintf(f->no_gpu, sizeof f->no_gpu, "%s", f->n_gpu == 0 ? mla_last_error() : "");
}

static const char *isa_state(const mla_isa_info *isa)
{
    return isa->selected ? "in use" : isa->usable ? "usable" : "this CPU cannot run it";
}

/* Kind by kind, in the order in which the kinds come first; the tables go level by level. */
static void print_kernels(const facts *f)
{
    bool printed[MAX_KERNEL] = {false};
    const char *title = "kernels";
    for (size_t i = 0; i < f->n_kernel; i++) {
        const char *kind = f->kernel[i].kind;
        for (size_t j = i; j < f->n_kernel; j++) {
            if (f->kernel[j].selected && !printed[j] && strcmp(f->kernel[j].kind, f->kernel[i].kind) == 0) {
                print_fact(title, "%-12s %s", kind, f->kernel[j].name);
                printed[j] = true;
                title = kind = "";
            }
        }
    }
}

static void print_text(const facts *f)
{
    const machine *m = f->machine;
    char text[4][32];
    printf("%slibmla %s%s\n\n", style(STYLE_STRONG), mla_version(), style(STYLE_PLAIN));
    print_fact("cpu", "%s", m->cpu);
    print_fact("features", "%s", m->features[0] != '\0' ? m->features : "unknown");
    print_fact("caches", "L1d %s, L2 %s, L3 %s", text_bytes((double)m->l1d_bytes, text[0]),
               text_bytes((double)m->l2_bytes, text[1]), text_bytes((double)m->l3_bytes, text[2]));
    print_fact("memory", "%s, %s free", text_bytes((double)m->memory_bytes, text[0]),
               text_bytes((double)m->available_bytes, text[1]));
    print_fact("system", "%s", m->system);
    print_fact("threads", "%d for a call that does not say (the process may use %d CPU%s)", (int)f->n_thread,
               (int)m->n_cpu, m->n_cpu == 1 ? "" : "s");
    for (size_t i = 0; i < f->n_gpu; i++) {
        const mla_gpu_info *gpu = &f->gpu[i];
        print_fact(i == 0 ? "gpus" : "", "%zu: %s, compute capability %d.%d, %d multiprocessors, %s", i, gpu->name,
                   (int)gpu->compute_capability / 10, (int)gpu->compute_capability % 10, (int)gpu->n_sm,
                   text_bytes((double)gpu->memory_bytes, text[0]));
        print_fact("", "   kernels: %s", gpu->variants);
    }
    if (f->n_gpu == 0) {
        print_fact("gpus", "none: %s", f->no_gpu);
    }
    printf("\n");
    for (size_t i = 0; i < f->n_isa; i++) {
        print_fact(i == 0 ? "levels" : "", "%-12s %s", f->isa[i].name, isa_state(&f->isa[i]));
    }
    print_fact("arithmetic", "%s, for 16 heads of 576/512 in bf16 on the CPU", f->arithmetic);
    printf("\n");
    print_kernels(f);
    printf("\n");
    bool first = true;
    for (size_t i = 0; i < N_VARIABLE; i++) {
        const char *value = getenv(variables[i]);
        if (value != NULL) {
            print_fact(first ? "environment" : "", "%s=%s", variables[i], value);
            first = false;
        }
    }
    if (first) {
        print_fact("environment", "nothing set; 'man mla' has the variables");
    }
}

static cJSON *build_json(const facts *f)
{
    const machine *m = f->machine;
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "version", mla_version());
    cJSON *cpu = cJSON_AddObjectToObject(root, "machine");
    cJSON_AddStringToObject(cpu, "cpu", m->cpu);
    cJSON_AddStringToObject(cpu, "features", m->features);
    cJSON_AddNumberToObject(cpu, "cpus", m->n_cpu);
    cJSON_AddNumberToObject(cpu, "cores", m->n_core);
    cJSON_AddNumberToObject(cpu, "l1d_bytes", (double)m->l1d_bytes);
    cJSON_AddNumberToObject(cpu, "l2_bytes", (double)m->l2_bytes);
    cJSON_AddNumberToObject(cpu, "l3_bytes", (double)m->l3_bytes);
    cJSON_AddNumberToObject(cpu, "memory_bytes", (double)m->memory_bytes);
    cJSON_AddStringToObject(cpu, "system", m->system);
    cJSON_AddNumberToObject(root, "threads", f->n_thread);
    cJSON *isa = cJSON_AddArrayToObject(root, "isa");
    for (size_t i = 0; i < f->n_isa; i++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "name", f->isa[i].name);
        cJSON_AddBoolToObject(item, "usable", f->isa[i].usable);
        cJSON_AddBoolToObject(item, "selected", f->isa[i].selected);
        cJSON_AddItemToArray(isa, item);
    }
    cJSON_AddStringToObject(root, "arithmetic", f->arithmetic);
    cJSON *kernels = cJSON_AddArrayToObject(root, "kernels");
    for (size_t i = 0; i < f->n_kernel; i++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "name", f->kernel[i].name);
        cJSON_AddStringToObject(item, "kind", f->kernel[i].kind);
        cJSON_AddStringToObject(item, "isa", f->kernel[i].isa);
        cJSON_AddBoolToObject(item, "selected", f->kernel[i].selected);
        cJSON_AddItemToArray(kernels, item);
    }
    cJSON *gpus = cJSON_AddArrayToObject(root, "gpus");
    for (size_t i = 0; i < f->n_gpu; i++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "name", f->gpu[i].name);
        cJSON_AddNumberToObject(item, "compute_capability", f->gpu[i].compute_capability);
        cJSON_AddNumberToObject(item, "multiprocessors", f->gpu[i].n_sm);
        cJSON_AddNumberToObject(item, "memory_bytes", (double)f->gpu[i].memory_bytes);
        cJSON_AddStringToObject(item, "kernels", f->gpu[i].variants);
        cJSON_AddItemToArray(gpus, item);
    }
    if (f->n_gpu == 0) {
        cJSON_AddStringToObject(root, "gpus_note", f->no_gpu);
    }
    cJSON *environment = cJSON_AddObjectToObject(root, "environment");
    for (size_t i = 0; i < N_VARIABLE; i++) {
        const char *value = getenv(variables[i]);
        if (value != NULL) {
            cJSON_AddStringToObject(environment, variables[i], value);
        }
    }
    return root;
}

static int run(int argc, char **argv)
{
    enum { OPT_JSON = 256 };
    static const struct option options[] = {{"json", no_argument, NULL, OPT_JSON},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    bool json = false;
    for (int c; (c = cli_next_option(argc, argv, ":h", options)) != -1;) {
        switch (c) {
        case OPT_JSON: json = true; break;
        case 'h': return CLI_OK;
        default: return CLI_USAGE;
        }
    }
    if (optind != argc) {
        return cli_fail("'%s' is one argument too many; see 'mla info --help'", argv[optind]);
    }
    if (!cli_apply_level(NULL, NULL)) {
        return CLI_USAGE;
    }
    static facts f;
    gather(&f);
    if (!json) {
        print_text(&f);
        return CLI_OK;
    }
    cJSON *root = build_json(&f);
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    if (text == NULL) {
        return cli_fail("not enough memory");
    }
    puts(text);
    cJSON_free(text);
    return CLI_OK;
}

const cli_command cli_info = {"info", "show what this machine and this build can do", help, run};
