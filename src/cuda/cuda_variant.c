/*
 * cuda_variant.c - the table of variants, the fastest first.
 */
#include "cuda_variant.h"

const mla_cuda_variant *const mla_cuda_variants[] = {&mla_cuda_dense_few_sm90_variant, &mla_cuda_dense_sm90_variant,
                                                     &mla_cuda_generic_variant, NULL};
