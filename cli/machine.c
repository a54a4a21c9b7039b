/*
 * machine.c - see machine.h.
 */
#include "machine.h"

#include <ctype.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

/* "model name : AMD EPYC" -> "AMD EPYC" into text; false when there is no such line. */
static bool cpuinfo_field(const char *key, char *text, size_t size)
{
    FILE *stream = fopen("/proc/cpuinfo", "r");
    if (stream == NULL) {
        return false;
    }
    char line[4096];
    bool found = false;
    while (!found && fgets(line, sizeof line, stream) != NULL) {
        size_t length = strlen(key);
        if (strncmp(line, key, length) == 0 && (line[length] == '\t' || line[length] == ' ' || line[length] == ':')) {
            const char *colon = strchr(line, ':');
            if (colon != NULL) {
                colon++;
                colon += strspn(colon, " \t");
                snprintf(text, size, "%.*s", (int)strcspn(colon, "\n"), colon);
                found = true;
            }
        }
    }
    fclose(stream);
    return found;
}

/* Size of cpu 0's data or unified cache of a level, from sysfs; 0: unknown. */
static int64_t cache_bytes(int level)
{
    for (int index = 0; index < 8; index++) {
        char path[96], type[32] = "";
        int found = 0;
        int64_t kib = 0;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/level", index);
        FILE *stream = fopen(path, "r");
        if (stream == NULL) {
            break;
        }
        bool right = fscanf(stream, "%d", &found) == 1 && found == level;
        fclose(stream);
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/type", index);
        stream = fopen(path, "r");
        if (stream != NULL) {
            right = right && fscanf(stream, "%31s", type) == 1 && strcmp(type, "Instruction") != 0;
            fclose(stream);
        }
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
        stream = fopen(path, "r");
        if (stream != NULL) {
            long value;
            char unit = '\0';
            if (fscanf(stream, "%ld%c", &value, &unit) >= 1) {
                kib = unit == 'M' ? 1024 * (int64_t)value : value;
            }
            fclose(stream);
        }
        if (right) {
            return 1024 * kib;
        }
    }
    return 0;
}

static void add_feature(machine *m, bool present, const char *name)
{
    if (present) {
        size_t used = strlen(m->features);
        snprintf(m->features + used, sizeof m->features - used, "%s%s", used > 0 ? " " : "", name);
    }
}

#if defined(__x86_64__)

static void ask_cpu(machine *m)
{
    uint32_t a, b, c, d, xcr0 = 0, b7 = 0, c7 = 0, d7 = 0, a71 = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0) {
        return;
    }
    uint32_t family = (a >> 8 & 15u) == 15u ? (a >> 20 & 255u) + 15u : a >> 8 & 15u;
    uint32_t model = (a >> 4 & 15u) | (family >= 6 ? a >> 12 & 0xf0u : 0);
    size_t used = strlen(m->cpu);
    snprintf(m->cpu + used, sizeof m->cpu - used, " (family %u model %u)", family, model);
    uint32_t c1 = c, unused;
    if (c1 >> 27 & 1u) { /* osxsave: which registers does the system keep? */
        uint32_t high;
        __asm__ volatile("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
    }
    if (__get_cpuid_count(7, 0, &a, &b7, &c7, &d7) != 0 && a >= 1) {
        __get_cpuid_count(7, 1, &a71, &unused, &unused, &unused);
    }
    bool ymm = (xcr0 & 0x6u) == 0x6u, zmm = (xcr0 & 0xe6u) == 0xe6u, tile = (xcr0 & 0x60000u) == 0x60000u;
    bool avx2 = ymm && (b7 >> 5 & 1u), fma = ymm && (c1 >> 12 & 1u), f16c = ymm && (c1 >> 29 & 1u);
    bool f = zmm && (b7 >> 16 & 1u), dq = zmm && (b7 >> 17 & 1u), bw = zmm && (b7 >> 30 & 1u), vl = zmm && (b7 >> 31);
    add_feature(m, c1 >> 20 & 1u, "sse4.2");
    add_feature(m, ymm && (c1 >> 28 & 1u), "avx");
    add_feature(m, avx2, "avx2");
    add_feature(m, fma, "fma");
    add_feature(m, f16c, "f16c");
    add_feature(m, ymm && (a71 >> 4 & 1u), "avx_vnni");
    add_feature(m, f, "avx512f");
    add_feature(m, bw, "avx512bw");
    add_feature(m, dq, "avx512dq");
    add_feature(m, vl, "avx512vl");
    add_feature(m, zmm && (c7 >> 11 & 1u), "avx512_vnni");
    add_feature(m, zmm && (a71 >> 5 & 1u), "avx512_bf16");
    add_feature(m, zmm && (d7 >> 23 & 1u), "avx512_fp16");
    add_feature(m, tile && (d7 >> 24 & 1u), "amx_tile");
    add_feature(m, tile && (d7 >> 22 & 1u), "amx_bf16");
    add_feature(m, tile && (d7 >> 25 & 1u), "amx_int8");
    m->avx2 = avx2 && fma && f16c;
    m->avx512 = f && bw && dq && vl;
}

#elif defined(__aarch64__)

/* Bits of AT_HWCAP and AT_HWCAP2, named here because headers of older systems lack some. */
static const struct {
    int bit;
    bool second;
    const char *name;
} arm_features[] = {{1, false, "asimd"},    {8, false, "atomics"}, {9, false, "fphp"},      {10, false, "asimdhp"},
                    {20, false, "asimddp"}, {22, false, "sve"},    {23, false, "asimdfhm"}, {1, true, "sve2"},
                    {13, true, "i8mm"},     {14, true, "bf16"},    {23, true, "sme"}};

enum { ARM_CPUID = 11 }; /* the bit of AT_HWCAP that lets programs read MIDR_EL1 */

static const struct {
    uint32_t implementer, part;
    const char *name;
} arm_cores[] = {{0x41, 0xd03, "Arm Cortex-A53"},
                 {0x41, 0xd05, "Arm Cortex-A55"},
                 {0x41, 0xd07, "Arm Cortex-A57"},
                 {0x41, 0xd08, "Arm Cortex-A72"},
                 {0x41, 0xd0b, "Arm Cortex-A76"},
                 {0x41, 0xd41, "Arm Cortex-A78"},
                 {0x41, 0xd44, "Arm Cortex-X1"},
                 {0x41, 0xd0c, "Arm Neoverse N1"},
                 {0x41, 0xd40, "Arm Neoverse V1"},
                 {0x41, 0xd49, "Arm Neoverse N2"},
                 {0x41, 0xd4f, "Arm Neoverse V2"},
                 {0x41, 0xd84, "Arm Neoverse V3"},
                 {0x41, 0xd8e, "Arm Neoverse N3"},
                 {0x43, 0x0af, "Cavium ThunderX2"},
                 {0x46, 0x001, "Fujitsu A64FX"},
                 {0x48, 0xd01, "HiSilicon Kunpeng 920"},
                 {0x61, 0x022, "Apple M1 (Icestorm)"},
                 {0x61, 0x023, "Apple M1 (Firestorm)"},
                 {0xc0, 0xac3, "Ampere-1"},
                 {0x00, 0x051, "QEMU's own Arm CPU"}};

/* Who made the core and which it is: from /proc/cpuinfo, or where that is another machine's (emulation), from the
 * register itself. */
static bool arm_core(uint32_t *implementer, uint32_t *part)
{
    char text[2][32];
    if (cpuinfo_field("CPU implementer", text[0], sizeof text[0]) &&
        cpuinfo_field("CPU part", text[1], sizeof text[1])) {
        *implementer = (uint32_t)strtoul(text[0], NULL, 0);
        *part = (uint32_t)strtoul(text[1], NULL, 0);
        return true;
    }
    if (getauxval(AT_HWCAP) >> ARM_CPUID & 1) {
        uint64_t midr;
        __asm__("mrs %0, MIDR_EL1" : "=r"(midr));
        *implementer = (uint32_t)(midr >> 24 & 0xff);
        *part = (uint32_t)(midr >> 4 & 0xfff);
        return true;
    }
    return false;
}

static void ask_cpu(machine *m)
{
    uint32_t implementer, part;
    if (arm_core(&implementer, &part)) {
        const char *name = "Arm CPU";
        for (size_t i = 0; i < sizeof arm_cores / sizeof *arm_cores; i++) {
            if (arm_cores[i].implementer == implementer && arm_cores[i].part == part) {
                name = arm_cores[i].name;
            }
        }
        snprintf(m->cpu, sizeof m->cpu, "%s (implementer 0x%02x part 0x%03x)", name, implementer, part);
    }
    for (size_t i = 0; i < sizeof arm_features / sizeof *arm_features; i++) {
        unsigned long bits = getauxval(arm_features[i].second ? AT_HWCAP2 : AT_HWCAP);
        add_feature(m, bits >> arm_features[i].bit & 1, arm_features[i].name);
    }
}

#else

static void ask_cpu(machine *m)
{
    char line[4096];
    if (cpuinfo_field("Features", line, sizeof line) || cpuinfo_field("isa", line, sizeof line)) {
        add_feature(m, true, line);
    }
}

#endif

static int64_t meminfo_bytes(const char *key)
{
    FILE *stream = fopen("/proc/meminfo", "r");
    char name[64];
    long long kib;
    int64_t bytes = 0;
    while (stream != NULL && bytes == 0 && fscanf(stream, "%63[^:]: %lld%*[^\n]\n", name, &kib) == 2) {
        if (strcmp(name, key) == 0) {
            bytes = 1024 * (int64_t)kib;
        }
    }
    if (stream != NULL) {
        fclose(stream);
    }
    return bytes;
}

/* Cores that the CPUs of this process belong to: each is known by the first of its CPUs. 0: unknown. */
static int32_t core_count(void)
{
    cpu_set_t allowed, first;
    CPU_ZERO(&first);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        return 0;
    }
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed)) {
            continue;
        }
        char path[96];
        int sibling = -1;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
        FILE *stream = fopen(path, "r");
        bool known = stream != NULL && fscanf(stream, "%d", &sibling) == 1 && sibling >= 0 && sibling < CPU_SETSIZE;
        if (stream != NULL) {
            fclose(stream);
        }
        if (!known) {
            return 0;
        }
        CPU_SET(sibling, &first);
    }
    return CPU_COUNT(&first);
}

const machine *machine_get(void)
{
    static machine m;
    if (m.n_cpu > 0) {
        return &m;
    }
    struct utsname system;
    if (!cpuinfo_field("model name", m.cpu, 96)) {
        snprintf(m.cpu, sizeof m.cpu, "unknown CPU");
    }
    ask_cpu(&m);
    cpu_set_t allowed;
    m.n_cpu = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed)
                                                                  : (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    m.n_cpu = m.n_cpu < 1 ? 1 : m.n_cpu;
    m.n_core = core_count();
    m.l1d_bytes = cache_bytes(1);
    m.l2_bytes = cache_bytes(2);
    m.l3_bytes = cache_bytes(3);
    m.memory_bytes = meminfo_bytes("MemTotal");
    m.available_bytes = meminfo_bytes("MemAvailable");
    if (uname(&system) == 0) {
        snprintf(m.system, sizeof m.system, "%.40s %.60s %.20s", system.sysname, system.release, system.machine);
    }
    return &m;
}
