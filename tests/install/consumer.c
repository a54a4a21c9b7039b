/* consumer.c - the smallest useful program: one query attends to one key, so the output is that key's value. */
#include <mla/mla.h>
#include <stdio.h>

int main(void)
{
    float q[64] = {1}, k[64] = {2}, o[64];
    mla_problem p;
    mla_problem_init(&p);
    p.q = mla_tensor_make(q, MLA_DTYPE_F32, 4, (int64_t[]){1, 1, 1, 64});
    p.segment[0].k = mla_tensor_make(k, MLA_DTYPE_F32, 4, (int64_t[]){1, 1, 1, 64});
    p.o = mla_tensor_make(o, MLA_DTYPE_F32, 4, (int64_t[]){1, 1, 1, 64});
    p.d_v = 64;
    p.softmax_scale = 0.125f;
    mla_status status = mla_attention(&p, NULL);
    printf("libmla %s: %s %s\n", mla_version(), mla_status_name(status), mla_last_error());
    return status == MLA_STATUS_OK && o[0] == 2 && o[63] == 0 ? 0 : 1;
}
