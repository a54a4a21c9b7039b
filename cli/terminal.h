/*
 * terminal.h - quiet colours and one progress line.
 *
 * Colours only on a terminal, and not with NO_COLOR or TERM=dumb. The progress line lives on stderr, only when that is
 * a terminal, and is gone before anything else is printed.
 */
#ifndef MLA_CLI_TERMINAL_H
#define MLA_CLI_TERMINAL_H

#include <stdbool.h>
#include <stdint.h>

typedef enum terminal_style {
    STYLE_PLAIN = 0,
    STYLE_STRONG,
    STYLE_FAINT,
    STYLE_GOOD,
    STYLE_BAD,
    STYLE_WARN
} terminal_style;

/* The escape sequence that starts a style on stdout, or "". STYLE_PLAIN ends all. */
const char *style(terminal_style which);

/* Replaces control characters, so that text from a file cannot steer the terminal. The functions below do so
 * themselves. */
void make_printable(char *text);

/* One labelled line on stdout: "  label      text". */
__attribute__((format(printf, 2, 3))) void print_fact(const char *label, const char *format, ...);

/* The same with a verdict in front of the text: green "ok" or red "FAILED". */
__attribute__((format(printf, 3, 4))) void print_verdict(const char *label, bool good, const char *format, ...);

/* Draws or redraws the progress line; fraction < 0: unknown. At most about ten times a second. */
__attribute__((format(printf, 2, 3))) void progress(double fraction, const char *format, ...);
void progress_clear(void);

/* Text for people; buffers of at least 32 bytes. */
const char *text_bytes(double bytes, char *buffer);     /* "1.2 MiB" */
const char *text_seconds(double seconds, char *buffer); /* "12.3 ms" */
const char *text_count(int64_t value, char *buffer);    /* "65,536" */

#endif
