/*
 * check_kernels_hif8.c - the array kernels of HiFloat8 against the oracle's own codec, every length around a vector's.
 */
#include <math.h>
#include <string.h>

#include "kernel_tools.h"
#include "ref/number.h"

enum { MOST = 100 };

void kernel_check_encode(void)
{
    const kernel_case *k = kernel_now();
    ck_random r = {ck_seed};
    for (int64_t n = 0; n <= MOST; n++) {
        for (int saturate = 0; saturate < 2; saturate++) {
            size_t mark = ck_mark();
            float *x = kernel_floats("x", n);
            uint8_t *code = ck_buffer("code", (size_t)n);
            for (int64_t i = 0; i < n; i++) {
                uint32_t bits = (uint32_t)ck_next(&r);
                if (i % 2) { /* within the format's range, every second one half way between two numbers or exact */
                    bits = (bits & 0x80000000u) | (0x33800000u + bits % 0x14000000u);
                    bits = i % 4 == 1 ? bits & 0xfff80000u : bits;
                }
                memcpy(&x[i], &bits, sizeof bits);
            }
            k->table->hif8_encode(x, n, saturate, code);
            for (int64_t i = 0; i < n; i++) {
                uint32_t want = mla_ref_encode(MLA_DTYPE_HIF8, (double)x[i]);
                if (saturate) {
                    want = isnan(x[i]) ? 0 : (want & 0x7f) == 0x6f ? want - 1 : want;
                }
                if (code[i] != want) {
                    ck_fail("%lld of %lld: %a has code %02x, expected %02x", (long long)i, (long long)n, (double)x[i],
                            code[i], want);
                }
            }
            ck_release(mark);
        }
    }
}

void kernel_check_decode(void)
{
    const kernel_case *k = kernel_now();
    ck_random r = {ck_seed};
    for (int64_t n = 0; n <= MOST; n++) {
        for (int tame = 0; tame < 2; tame++) { /* infinities and NaN may go another way, so once without them */
            size_t mark = ck_mark();
            uint8_t *code = ck_buffer("code", (size_t)n);
            float *x = kernel_floats("x", n);
            for (int64_t i = 0; i < n; i++) {
                code[i] = (uint8_t)ck_next(&r);
                code[i] = tame && !isfinite(mla_ref_decode(MLA_DTYPE_HIF8, code[i])) ? 0 : code[i];
            }
            k->table->hif8_decode(code, n, x);
            for (int64_t i = 0; i < n; i++) {
                double want = mla_ref_decode(MLA_DTYPE_HIF8, code[i]), got = (double)x[i];
                if (isnan(want) ? !isnan(got) : got != want || !signbit(got) != !signbit(want)) {
                    ck_fail("%lld of %lld: code %02x is %a, expected %a", (long long)i, (long long)n, code[i], got,
                            want);
                }
            }
            ck_release(mark);
        }
    }
}
