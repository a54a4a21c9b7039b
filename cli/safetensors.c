/*
 * safetensors.c - see safetensors.h.
 */
#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "cli.h"

struct safetensors_file {
    int fd;
    uint64_t data_offset; /* of the data in the file */
    uint64_t data_bytes;
    cJSON *header;   /* owns every string that is handed out */
    cJSON *metadata; /* part of header; NULL: none */
    safetensors_entry *entry;
    size_t n_entry;
};

static const struct {
    const char *name;
    uint32_t bits; /* per element */
    mla_dtype dtype;
} dtype_table[] = {
    {"F32", 32, MLA_DTYPE_F32},     {"F16", 16, MLA_DTYPE_F16},     {"BF16", 16, MLA_DTYPE_BF16},
    {"I32", 32, MLA_DTYPE_I32},     {"I64", 64, MLA_DTYPE_I64},     {"I8", 8, MLA_DTYPE_I8},
    {"U8", 8, MLA_DTYPE_U8},        {"F64", 64, MLA_DTYPE_NONE},    {"U64", 64, MLA_DTYPE_NONE},
    {"U32", 32, MLA_DTYPE_NONE},    {"I16", 16, MLA_DTYPE_NONE},    {"U16", 16, MLA_DTYPE_NONE},
    {"BOOL", 8, MLA_DTYPE_NONE},    {"F8_E4M3", 8, MLA_DTYPE_NONE}, {"F8_E5M2", 8, MLA_DTYPE_NONE},
    {"F8_E8M0", 8, MLA_DTYPE_NONE},
};

#define N_DTYPE (sizeof dtype_table / sizeof dtype_table[0])

/* Longest name that a sentence quotes. */
#define QUOTED 80

__attribute__((format(printf, 3, 4))) static bool refuse(char *error, size_t error_size, const char *format, ...)
{
    __builtin_va_list arguments;
    __builtin_va_start(arguments, format);
    vsnprintf(error, error_size, format, arguments);
    __builtin_va_end(arguments);
    return false;
}

static bool read_all(int fd, void *memory, uint64_t bytes, uint64_t offset)
{
    char *at = memory;
    while (bytes > 0) {
        size_t chunk = bytes < (1u << 30) ? (size_t)bytes : 1u << 30;
        ssize_t got = pread(fd, at, chunk, (off_t)offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return false;
        }
        at += got;
        offset += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return true;
}

/* A JSON number that is a whole, non-negative one and exact in a double. */
static bool whole_number(const cJSON *item, uint64_t *value)
{
    if (!cJSON_IsNumber(item)) {
        return false;
    }
    double x = item->valuedouble;
    if (!(x >= 0 && x <= 0x1p53) || x != (double)(uint64_t)x) {
        return false;
    }
    *value = (uint64_t)x;
    return true;
}

/* One entry of the header into *entry: everything that can be said without looking at its neighbours. */
static bool parse_entry(const cJSON *item, uint64_t data_bytes, safetensors_entry *entry, char *error,
                        size_t error_size)
{
    const char *name = item->string;
    if (!cJSON_IsObject(item)) {
        return refuse(error, error_size, "tensor '%.*s' must be a JSON object", QUOTED, name);
    }
    const cJSON *dtype = NULL, *shape = NULL, *offsets = NULL, *field;
    cJSON_ArrayForEach(field, item)
    {
        const cJSON **slot = strcmp(field->string, "dtype") == 0          ? &dtype
                             : strcmp(field->string, "shape") == 0        ? &shape
                             : strcmp(field->string, "data_offsets") == 0 ? &offsets
                                                                          : NULL;
        if (slot == NULL || *slot != NULL) {
            return refuse(error, error_size, "tensor '%.*s' must have dtype, shape and data_offsets, once each", QUOTED,
                          name);
        }
        *slot = field;
    }
    if (!cJSON_IsString(dtype) || !cJSON_IsArray(shape) || !cJSON_IsArray(offsets)) {
        return refuse(error, error_size,
                      "tensor '%.*s' must have a string dtype, an array shape and an array data_offsets", QUOTED, name);
    }
    size_t type = 0;
    while (type < N_DTYPE && strcmp(dtype_table[type].name, dtype->valuestring) != 0) {
        type++;
    }
    if (type == N_DTYPE) {
        return refuse(error, error_size, "tensor '%.*s' has the unknown dtype '%.16s'", QUOTED, name,
                      dtype->valuestring);
    }
    entry->name = name;
    entry->dtype = dtype_table[type].dtype;
    entry->dtype_name = dtype_table[type].name;

    uint64_t bytes = dtype_table[type].bits / 8;
    const cJSON *extent;
    cJSON_ArrayForEach(extent, shape)
    {
        uint64_t value;
        if (entry->ndim == SAFETENSORS_MAX_NDIM) {
            return refuse(error, error_size, "tensor '%.*s' has more than %d dimensions", QUOTED, name,
                          SAFETENSORS_MAX_NDIM);
        }
        if (!whole_number(extent, &value)) {
            return refuse(error, error_size, "shape[%d] of tensor '%.*s' must be a whole number from 0 to 2^53",
                          (int)entry->ndim, QUOTED, name);
        }
        if (__builtin_mul_overflow(bytes, value, &bytes)) {
            return refuse(error, error_size, "shape of tensor '%.*s' stands for more than 2^64 bytes", QUOTED, name);
        }
        entry->dim[entry->ndim++] = (int64_t)value;
    }
    if (cJSON_GetArraySize(offsets) != 2 || !whole_number(cJSON_GetArrayItem(offsets, 0), &entry->begin) ||
        !whole_number(cJSON_GetArrayItem(offsets, 1), &entry->end)) {
        return refuse(error, error_size, "data_offsets of tensor '%.*s' must be two whole numbers from 0 to 2^53",
                      QUOTED, name);
    }
    if (entry->begin > entry->end || entry->end > data_bytes) {
        return refuse(error, error_size,
                      "data_offsets [%" PRIu64 ", %" PRIu64 ") of tensor '%.*s' do not lie in the file's %" PRIu64
                      " bytes of data",
                      entry->begin, entry->end, QUOTED, name, data_bytes);
    }
    if (entry->end - entry->begin != bytes) {
        return refuse(error, error_size,
                      "tensor '%.*s' has %" PRIu64 " bytes, but its dtype and shape stand for %" PRIu64, QUOTED, name,
                      entry->end - entry->begin, bytes);
    }
    return true;
}

static int by_begin(const void *a, const void *b)
{
    const safetensors_entry *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return x->end < y->end ? -1 : x->end > y->end; /* an empty tensor before the one that starts where it does */
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Is there a name twice among the children of an object? */
static bool repeated_name(const cJSON *object, const char **repeated)
{
    size_t count = (size_t)cJSON_GetArraySize(object), i = 0;
    const char **name = cli_alloc(count, sizeof *name);
    if (name == NULL) {
        *repeated = "(no memory to tell)";
        return true;
    }
    const cJSON *item;
    cJSON_ArrayForEach(item, object)
    {
        name[i++] = item->string;
    }
    qsort(name, count, sizeof *name, by_name);
    bool found = false;
    for (i = 1; i < count && !found; i++) {
        if (strcmp(name[i - 1], name[i]) == 0) {
            *repeated = name[i];
            found = true;
        }
    }
    free(name);
    return found;
}

static bool parse_header(safetensors_file *file, char *error, size_t error_size)
{
    const char *repeated;
    if (repeated_name(file->header, &repeated)) {
        return refuse(error, error_size, "header names '%.*s' twice", QUOTED, repeated);
    }
    file->entry = cli_alloc((size_t)cJSON_GetArraySize(file->header), sizeof *file->entry);
    if (file->entry == NULL) {
        return refuse(error, error_size, "not enough memory for the header");
    }
    cJSON *item;
    cJSON_ArrayForEach(item, file->header)
    {
        if (strcmp(item->string, "__metadata__") == 0) {
            file->metadata = item;
        } else if (!parse_entry(item, file->data_bytes, &file->entry[file->n_entry++], error, error_size)) {
            return false;
        }
    }
    qsort(file->entry, file->n_entry, sizeof *file->entry, by_begin);
    uint64_t at = 0;
    for (size_t i = 0; i < file->n_entry; i++) {
        const safetensors_entry *entry = &file->entry[i];
        if (entry->begin != at) {
            return refuse(error, error_size, "tensor '%.*s' begins at byte %" PRIu64 " of the data, %s byte %" PRIu64,
                          QUOTED, entry->name, entry->begin,
                          entry->begin < at ? "but the one before it ends at" : "leaving a hole from", at);
        }
        at = entry->end;
    }
    if (at != file->data_bytes) {
        return refuse(error, error_size, "the tensors end at byte %" PRIu64 " of the data, but the file has %" PRIu64,
                      at, file->data_bytes);
    }
    if (file->metadata != NULL) {
        if (!cJSON_IsObject(file->metadata)) {
            return refuse(error, error_size, "__metadata__ must be a JSON object");
        }
        cJSON_ArrayForEach(item, file->metadata)
        {
            if (!cJSON_IsString(item)) {
                return refuse(error, error_size, "__metadata__ '%.*s' must be a string", QUOTED, item->string);
            }
        }
        if (repeated_name(file->metadata, &repeated)) {
            return refuse(error, error_size, "__metadata__ names '%.*s' twice", QUOTED, repeated);
        }
    }
    return true;
}

static bool open_and_parse(safetensors_file *file, const char *path, char *error, size_t error_size)
{
    struct stat status;
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* so that a FIFO is refused instead of waited for */
    if (file->fd < 0 || fstat(file->fd, &status) != 0) {
        return refuse(error, error_size, "cannot open it: %s", strerror(errno));
    }
    if (!S_ISREG(status.st_mode)) {
        return refuse(error, error_size, "it is not a regular file");
    }
    uint64_t file_bytes = (uint64_t)status.st_size;
    unsigned char prefix[8];
    if (file_bytes < 8 || !read_all(file->fd, prefix, 8, 0)) {
        return refuse(error, error_size, "it has %" PRIu64 " bytes, too few for a safetensors file", file_bytes);
    }
    uint64_t header_bytes = 0;
    for (int i = 0; i < 8; i++) {
        header_bytes |= (uint64_t)prefix[i] << 8 * i;
    }
    if (header_bytes > SAFETENSORS_MAX_HEADER || header_bytes > file_bytes - 8) {
        return refuse(error, error_size,
                      "it is no safetensors file, or broken: its header length %" PRIu64
                      " must not exceed %u bytes nor the %" PRIu64 " bytes that follow",
                      header_bytes, SAFETENSORS_MAX_HEADER, file_bytes - 8);
    }
    file->data_offset = 8 + header_bytes;
    file->data_bytes = file_bytes - file->data_offset;

    char *text = cli_alloc((size_t)header_bytes + 1, 1);
    if (text == NULL) {
        return refuse(error, error_size, "not enough memory for its header of %" PRIu64 " bytes", header_bytes);
    }
    bool read = read_all(file->fd, text, header_bytes, 8);
    const char *end = NULL;
    if (read && text[0] == '{') {
        file->header = cJSON_ParseWithLengthOpts(text, (size_t)header_bytes, &end, 0);
    }
    /* the header may be padded with spaces, and with nothing else */
    bool whole = file->header != NULL;
    for (; whole && end < text + header_bytes; end++) {
        whole = *end == ' ';
    }
    free(text);
    if (!read) {
        return refuse(error, error_size, "reading its header failed");
    }
    if (!whole || !cJSON_IsObject(file->header)) {
        return refuse(error, error_size, "its header is not one JSON object");
    }
    return parse_header(file, error, error_size);
}

safetensors_file *safetensors_open(const char *path, char *error, size_t error_size)
{
    safetensors_file *file = cli_alloc(1, sizeof *file);
    if (file == NULL) {
        refuse(error, error_size, "not enough memory");
        return NULL;
    }
    file->fd = -1;
    if (!open_and_parse(file, path, error, error_size)) {
        safetensors_close(file);
        return NULL;
    }
    return file;
}

void safetensors_close(safetensors_file *file)
{
    if (file == NULL) {
        return;
    }
    if (file->fd >= 0) {
        close(file->fd);
    }
    cJSON_Delete(file->header);
    free(file->entry);
    free(file);
}

size_t safetensors_count(const safetensors_file *file)
{
    return file->n_entry;
}

const safetensors_entry *safetensors_at(const safetensors_file *file, size_t i)
{
    return &file->entry[i];
}

const safetensors_entry *safetensors_find(const safetensors_file *file, const char *name)
{
    for (size_t i = 0; i < file->n_entry; i++) {
        if (strcmp(file->entry[i].name, name) == 0) {
            return &file->entry[i];
        }
    }
    return NULL;
}

const char *safetensors_metadata(const safetensors_file *file, const char *key)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, file->metadata)
    {
        if (strcmp(item->string, key) == 0) {
            return item->valuestring;
        }
    }
    return NULL;
}

size_t safetensors_metadata_count(const safetensors_file *file)
{
    return file->metadata == NULL ? 0 : (size_t)cJSON_GetArraySize(file->metadata);
}

void safetensors_metadata_at(const safetensors_file *file, size_t i, const char **key, const char **value)
{
    const cJSON *item = cJSON_GetArrayItem(file->metadata, (int)i);
    *key = item->string;
    *value = item->valuestring;
}

void *safetensors_read(const safetensors_file *file, const safetensors_entry *entry, char *error, size_t error_size)
{
    uint64_t bytes = entry->end - entry->begin;
    void *memory = bytes <= SIZE_MAX ? cli_alloc((size_t)bytes, 1) : NULL;
    if (memory == NULL) {
        refuse(error, error_size, "not enough memory for the %" PRIu64 " bytes of tensor '%.*s'", bytes, QUOTED,
               entry->name);
        return NULL;
    }
    if (!read_all(file->fd, memory, bytes, file->data_offset + entry->begin)) {
        free(memory);
        refuse(error, error_size, "reading tensor '%.*s' failed", QUOTED, entry->name);
        return NULL;
    }
    return memory;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static uint64_t output_bytes(const safetensors_output *tensor)
{
    uint64_t bytes = mla_dtype_size(tensor->dtype);
    for (int32_t i = 0; i < tensor->ndim; i++) {
        bytes *= (uint64_t)tensor->dim[i];
    }
    return bytes;
}

static const char *output_dtype_name(mla_dtype dtype)
{
    for (size_t i = 0; i < N_DTYPE; i++) {
        if (dtype_table[i].dtype == dtype && dtype != MLA_DTYPE_NONE) {
            return dtype_table[i].name;
        }
    }
    return NULL;
}

/* The header as text, padded with spaces so that the data start on a multiple of 64 bytes. NULL: no memory. */
static char *build_header(const safetensors_output *tensor, size_t n_tensor, const char *const (*metadata)[2],
                          size_t n_metadata)
{
    cJSON *header = cJSON_CreateObject();
    char *text = NULL;
    if (n_metadata > 0) {
        cJSON *map = cJSON_AddObjectToObject(header, "__metadata__");
        for (size_t i = 0; i < n_metadata; i++) {
            if (cJSON_AddStringToObject(map, metadata[i][0], metadata[i][1]) == NULL) {
                goto done;
            }
        }
    }
    uint64_t at = 0;
    for (size_t i = 0; i < n_tensor; i++) {
        cJSON *item = cJSON_AddObjectToObject(header, tensor[i].name);
        cJSON *shape;
        if (cJSON_AddStringToObject(item, "dtype", output_dtype_name(tensor[i].dtype)) == NULL ||
            (shape = cJSON_AddArrayToObject(item, "shape")) == NULL) {
            goto done;
        }
        for (int32_t j = 0; j < tensor[i].ndim; j++) {
            cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)tensor[i].dim[j]));
        }
        uint64_t end = at + output_bytes(&tensor[i]);
        cJSON *offsets = cJSON_AddArrayToObject(item, "data_offsets");
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)at));
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)end));
        at = end;
    }
    char *compact = cJSON_PrintUnformatted(header);
    if (compact != NULL) {
        size_t length = strlen(compact);
        size_t padded = (length + 8 + 63) / 64 * 64 - 8;
        text = cli_alloc(padded + 1, 1);
        if (text != NULL) {
            memset(text, ' ', padded);
            memcpy(text, compact, length);
        }
        cJSON_free(compact);
    }
done:
    cJSON_Delete(header);
    return text;
}

/* Where the bytes go first: beside the file, to be renamed when it is complete. Renaming over a device or a symbolic
 * link would replace it: those are written in place. NULL: no memory. */
static char *first_place(const char *path, bool *in_place)
{
    struct stat status;
    *in_place = lstat(path, &status) == 0 && !S_ISREG(status.st_mode);
    size_t size = strlen(path) + sizeof ".part";
    char *place = cli_alloc(size, 1);
    if (place != NULL) {
        snprintf(place, size, "%s%s", path, *in_place ? "" : ".part");
    }
    return place;
}

bool safetensors_can_write(const char *path, char *error, size_t error_size)
{
    bool in_place;
    char *place = path[0] != '\0' ? first_place(path, &in_place) : NULL;
    if (place == NULL) {
        return refuse(error, error_size, path[0] != '\0' ? "not enough memory" : "cannot write it: it has no name");
    }
    bool good = cli_can_write(place, error, error_size);
    free(place);
    return good;
}

bool safetensors_write(const char *path, const safetensors_output *tensor, size_t n_tensor,
                       const char *const (*metadata)[2], size_t n_metadata, char *error, size_t error_size)
{
    for (size_t i = 0; i < n_tensor; i++) {
        if (output_dtype_name(tensor[i].dtype) == NULL) {
            return refuse(error, error_size, "tensor '%s' has a dtype that safetensors has no name for",
                          tensor[i].name);
        }
    }
    bool in_place;
    char *partial = first_place(path, &in_place);
    char *header = build_header(tensor, n_tensor, metadata, n_metadata);
    if (partial == NULL || header == NULL) {
        free(partial);
        free(header);
        return refuse(error, error_size, "not enough memory");
    }
    uint64_t header_bytes = strlen(header);
    unsigned char prefix[8];
    for (int i = 0; i < 8; i++) {
        prefix[i] = (unsigned char)(header_bytes >> 8 * i);
    }
    FILE *stream = fopen(partial, "wb");
    bool good = stream != NULL && fwrite(prefix, 1, 8, stream) == 8 &&
                fwrite(header, 1, (size_t)header_bytes, stream) == header_bytes;
    for (size_t i = 0; good && i < n_tensor; i++) {
        size_t bytes = (size_t)output_bytes(&tensor[i]);
        good = bytes == 0 || fwrite(tensor[i].data, 1, bytes, stream) == bytes;
    }
    if (stream != NULL && fclose(stream) != 0) {
        good = false;
    }
    good = good && (in_place || rename(partial, path) == 0);
    if (!good) {
        refuse(error, error_size, "cannot write it: %s", strerror(errno));
        if (stream != NULL && !in_place) {
            remove(partial);
        }
    }
    free(partial);
    free(header);
    return good;
}
