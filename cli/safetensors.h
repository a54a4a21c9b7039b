/*
 * safetensors.h - reads and writes safetensors files.
 *
 * A file is: u64 little-endian header length N, N bytes of JSON, then the data. The JSON object maps each tensor's name
 * to {"dtype", "shape", "data_offsets": [begin, end)} with offsets into the data, and "__metadata__" to a map of
 * strings.
 *
 * The reader trusts nothing: every rule of the format is checked before a tensor can be asked for.
 */
#ifndef MLA_CLI_SAFETENSORS_H
#define MLA_CLI_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mla/mla_types.h"

#define SAFETENSORS_MAX_NDIM 8
#define SAFETENSORS_MAX_HEADER 100000000u /* bytes; the format's own limit */

typedef struct safetensors_entry {
    const char *name;       /* any text at all; owned by the file */
    const char *dtype_name; /* as in the file, "BF16" */
    mla_dtype dtype;        /* NONE for a dtype that libmla has no number for */
    int32_t ndim;
    int64_t dim[SAFETENSORS_MAX_NDIM];
    uint64_t begin, end; /* bytes, from the start of the data */
} safetensors_entry;

typedef struct safetensors_file safetensors_file;

/*
 * Opens and checks a file; the data stay on disk until they are asked for. NULL on failure, with one sentence in
 * error[error_size]. Close with safetensors_close().
 */
safetensors_file *safetensors_open(const char *path, char *error, size_t error_size);
void safetensors_close(safetensors_file *file); /* NULL is fine */

size_t safetensors_count(const safetensors_file *file);
const safetensors_entry *safetensors_at(const safetensors_file *file, size_t i);           /* in order of their data */
const safetensors_entry *safetensors_find(const safetensors_file *file, const char *name); /* NULL: not there */
const char *safetensors_metadata(const safetensors_file *file, const char *key);           /* NULL: not there */
size_t safetensors_metadata_count(const safetensors_file *file);
void safetensors_metadata_at(const safetensors_file *file, size_t i, const char **key, const char **value);

/* Reads an entry's bytes into memory that the caller frees, aligned to 64 bytes. NULL on failure, with a sentence. */
void *safetensors_read(const safetensors_file *file, const safetensors_entry *entry, char *error, size_t error_size);

/* One tensor to write: contiguous data, dtype known to both sides. */
typedef struct safetensors_output {
    const char *name;
    mla_dtype dtype;
    int32_t ndim;
    const int64_t *dim;
    const void *data;
} safetensors_output;

/* Can safetensors_write() write a file of this name? Leaves nothing behind; false with a sentence. */
bool safetensors_can_write(const char *path, char *error, size_t error_size);

/* Writes a file; metadata is n_metadata pairs of key and value. Offsets are aligned to 64 bytes only by the header,
 * so put wide types first. The file appears under its name only when it is complete. */
bool safetensors_write(const char *path, const safetensors_output *tensor, size_t n_tensor,
                       const char *const (*metadata)[2], size_t n_metadata, char *error, size_t error_size);

#endif
