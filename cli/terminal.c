/*
 * terminal.c - see terminal.h.
 */
#include "terminal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli.h"

#define LABEL_WIDTH 13
#define BAR_WIDTH 24

static bool on_terminal(int fd)
{
    const char *term = getenv("TERM");
    return isatty(fd) && (term == NULL || strcmp(term, "dumb") != 0);
}

static bool speaks_utf8(void)
{
    const char *names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = getenv(names[i]);
        if (value != NULL && value[0] != '\0') {
            return strstr(value, "UTF-8") != NULL || strstr(value, "utf8") != NULL || strstr(value, "utf-8") != NULL;
        }
    }
    return false;
}

const char *style(terminal_style which)
{
    static int colour = -1;
    if (colour < 0) {
        const char *no_colour = getenv("NO_COLOR");
        colour = on_terminal(STDOUT_FILENO) && (no_colour == NULL || no_colour[0] == '\0');
    }
    static const char *const sequence[] = {"\033[0m", "\033[1m", "\033[2m", "\033[32m", "\033[1;31m", "\033[33m"};
    return colour ? sequence[which] : "";
}

void make_printable(char *text)
{
    for (unsigned char *at = (unsigned char *)text; *at != '\0'; at++) {
        bool c1 = at[0] == 0xc2 && at[1] >= 0x80 && at[1] <= 0x9f; /* control characters in UTF-8 clothes */
        if (*at < 0x20 || *at == 0x7f || c1) {
            *at = '?';
        }
    }
}

static void print_line(const char *label, const char *verdict, terminal_style verdict_style, const char *format,
                       va_list arguments)
{
    char text[1024];
    vsnprintf(text, sizeof text, format, arguments);
    make_printable(text);
    printf("  %s%-*s%s%s%s%s%s%s\n", style(STYLE_FAINT), LABEL_WIDTH, label, style(STYLE_PLAIN), style(verdict_style),
           verdict, style(STYLE_PLAIN), verdict[0] != '\0' ? "  " : "", text);
}

void print_fact(const char *label, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_line(label, "", STYLE_PLAIN, format, arguments);
    va_end(arguments);
}

void print_verdict(const char *label, bool good, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_line(label, good ? "ok" : "FAILED", good ? STYLE_GOOD : STYLE_BAD, format, arguments);
    va_end(arguments);
}

static bool line_drawn;

void progress(double fraction, const char *format, ...)
{
    static double last;
    static int shown = -1;
    if (shown < 0) {
        shown = on_terminal(STDERR_FILENO);
    }
    double now = cli_now();
    if (!shown || (line_drawn && now - last < 0.1)) {
        return;
    }
    last = now;

    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);

    struct winsize size;
    int width = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
    fputs("\r\033[K  ", stderr);
    int used = 3;
    if (fraction >= 0 && width > BAR_WIDTH + 20) {
        bool utf8 = speaks_utf8();
        int full = (int)(fraction * BAR_WIDTH + 0.5);
        for (int i = 0; i < BAR_WIDTH; i++) {
            fputs(i < full ? utf8 ? "\xe2\x94\x81" : "=" : utf8 ? "\xe2\x94\x80" : "-", stderr);
        }
        fprintf(stderr, " %3.0f %%  ", 100 * (fraction < 1 ? fraction : 1));
        used += BAR_WIDTH + 8;
    }
    if (width > used) {
        fprintf(stderr, "%.*s", width - used, text);
    }
    fflush(stderr);
    line_drawn = true;
}

void progress_clear(void)
{
    if (line_drawn) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
        line_drawn = false;
    }
}

const char *text_bytes(double bytes, char *buffer)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t i = 0;
    while (bytes >= 1024 && i + 1 < sizeof unit / sizeof unit[0]) {
        bytes /= 1024;
        i++;
    }
    snprintf(buffer, 32, bytes >= 100 || bytes == (double)(int64_t)bytes ? "%.0f %s" : "%.1f %s", bytes, unit[i]);
    return buffer;
}

const char *text_seconds(double seconds, char *buffer)
{
    double value = seconds < 1e-3 ? seconds * 1e6 : seconds < 1 ? seconds * 1e3 : seconds;
    const char *unit = seconds < 1e-3 ? "us" : seconds < 1 ? "ms" : "s";
    snprintf(buffer, 32, "%.*f %s", value >= 100 ? 0 : value >= 10 ? 1 : 2, value, unit);
    return buffer;
}

const char *text_count(int64_t value, char *buffer)
{
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%" PRId64, value);
    char *to = buffer;
    for (int i = 0; i < length; i++) {
        if (i > 0 && digits[i - 1] != '-' && (length - i) % 3 == 0) {
            *to++ = ',';
        }
        *to++ = digits[i];
    }
    *to = '\0';
    return buffer;
}
