/*
 * hif8_vector.h - the inline functions of hif8_avx2.h or hif8_neon.h as plain ones, built for their level in hif8_vector.c.
 */
#ifndef TESTS_HIF8_VECTOR_H
#define TESTS_HIF8_VECTOR_H

#include <stdbool.h>
#include <stdint.h>

void hif8_vector_decode32(const uint8_t code[32], float x[32]);
void hif8_vector_decode8(const uint8_t code[8], float x[8]);
void hif8_vector_round8(const float x[8], float rounded[8]);
void hif8_vector_encode8(const float x[8], bool saturate, uint8_t code[8]);

#endif
