/*
 * mla_main.c - the `mla` command: finds the subcommand and hands over.
 */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "terminal.h"

/* In the order of `mla --help`: what a newcomer tries first comes first. */
static const cli_command *const commands[] = {&cli_demo, &cli_info, &cli_run, &cli_check, &cli_bench};

#define N_COMMAND (sizeof commands / sizeof commands[0])

static void print_help(void)
{
    printf("mla %s - multi-head latent attention on this machine\n"
           "\n"
           "Usage: mla COMMAND [options]\n"
           "\n"
           "Commands:\n",
           mla_version());
    for (size_t i = 0; i < N_COMMAND; i++) {
        printf("  %-8s%s\n", commands[i]->name, commands[i]->summary);
    }
    printf("\n"
           "  mla COMMAND --help tells more; --version prints the version.\n"
           "\n"
           "Examples:\n"
           "  mla demo                          see it work, verified, in seconds\n"
           "  mla check --seconds 60            random problems against the oracle\n"
           "  mla bench --quick --compare       speed beside the machine's limits and against BLAS\n"
           "\n"
           "Exit status: 0 fine, 1 a result was wrong, 2 the command could not do its work.\n");
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help();
        return CLI_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        print_help();
        return CLI_OK;
    }
    if (strcmp(name, "help") == 0) {
        if (argc == 2) {
            print_help();
            return CLI_OK;
        }
        static char option[] = "--help";
        name = argv[2];
        argv[1] = argv[2];
        argv[2] = option;
        argc = 3;
    }
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        printf("mla %s\n", mla_version());
        return CLI_OK;
    }
    for (size_t i = 0; i < N_COMMAND; i++) {
        if (strcmp(name, commands[i]->name) == 0) {
            cli_current = commands[i];
            int code = commands[i]->run(argc - 1, argv + 1);
            if (fflush(stdout) != 0 || ferror(stdout)) {
                return cli_fail("writing to standard output failed");
            }
            return code;
        }
    }
    return cli_fail("%s '%s' is not known; see 'mla --help'", name[0] == '-' ? "option" : "command", name);
}
