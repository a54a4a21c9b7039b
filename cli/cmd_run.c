/*
 * cmd_run.c - mla run: replays a captured attention call.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "cli.h"
#include "replay.h"
#include "terminal.h"

static const char help[] =
    "Usage: mla run [options] FILE\n"
    "\n"
    "Replays a captured flash_mla_with_kvcache call from a safetensors file: tensors q, k_cache, block_table and\n"
    "cache_seqlens, parameters in the header's metadata, and optionally the recorded results out and lse. A capture\n"
    "may also hold any other problem, under the names of mla_problem.h. docs/capture-format.md describes both.\n"
    "\n"
    "Options:\n"
    "      --check         verify the result against the oracle (fp64), and against the recorded result where the\n"
    "                      file has one; exit status 1 on a mismatch\n"
    "  -o, --out FILE      write inputs and results as a new capture\n"
    "  -t, --threads N     use N threads (default: what OpenMP decides)\n"
    "      --backend NAME  auto, cpu, ref, or cuda: on the first NVIDIA GPU (default: auto, the CPU)\n"
    "      --isa NAME      highest instruction set level, as listed by 'mla info' (default: the best usable)\n"
    "      --arith NAME    auto, f32, bf16, bf16x2 or int16: what CPU kernels compute in (default: auto)\n"
    "  -h, --help          show this help\n"
    "\n"
    "Examples:\n"
    "  mla run tests/data/deepseek_decode.safetensors\n"
    "  mla run --check --threads 1 tests/data/deepseek_decode.safetensors\n"
    "  mla run --isa scalar --out scalar.safetensors tests/data/deepseek_decode.safetensors\n";

static int run(int argc, char **argv)
{
    enum { OPT_CHECK = 256, OPT_BACKEND, OPT_ISA, OPT_ARITH };
    static const struct option options[] = {{"check", no_argument, NULL, OPT_CHECK},
                                            {"out", required_argument, NULL, 'o'},
                                            {"threads", required_argument, NULL, 't'},
                                            {"backend", required_argument, NULL, OPT_BACKEND},
                                            {"isa", required_argument, NULL, OPT_ISA},
                                            {"arith", required_argument, NULL, OPT_ARITH},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    replay_options replay = {.show_file = true};
    const char *isa = NULL, *arith = NULL;
    int64_t threads = 0;
    for (int c; (c = cli_next_option(argc, argv, ":ho:t:", options)) != -1;) {
        switch (c) {
        case OPT_CHECK: replay.check = true; break;
        case 'o': replay.out_path = optarg; break;
        case 't':
            if (!cli_parse_int("--threads", optarg, 1, 4096, &threads)) {
                return CLI_USAGE;
            }
            break;
        case OPT_BACKEND:
            if (!cli_parse_backend(optarg, &replay.backend)) {
                return CLI_USAGE;
            }
            break;
        case OPT_ISA: isa = optarg; break;
        case OPT_ARITH: arith = optarg; break;
        case 'h': return CLI_OK;
        default: return CLI_USAGE;
        }
    }
    if (argc - optind != 1) {
        return cli_fail("give exactly one capture file, not %d; see 'mla run --help'", argc - optind);
    }
    if (!cli_apply_level(isa, arith)) {
        return CLI_USAGE;
    }
    replay.n_thread = (int32_t)threads;
    return replay_capture(argv[optind], &replay);
}

const cli_command cli_run = {"run", "replay a captured attention call from a safetensors file", help, run};
