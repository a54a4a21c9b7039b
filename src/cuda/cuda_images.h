/*
 * cuda_images.h - the compiled kernels inside the library. The build writes the table: one image per .cu file.
 */
#ifndef MLA_CUDA_IMAGES_H
#define MLA_CUDA_IMAGES_H

typedef struct mla_cuda_image {
    const char *name; /* of the file: "generic" for kernels/generic.cu */
    const void *data; /* a fat binary, for cuModuleLoadData() */
} mla_cuda_image;

/* Ends with a NULL name; empty in a build without nvcc. */
extern const mla_cuda_image mla_cuda_images[];

/* Version of the CUDA toolkit that compiled them, 13000 for 13.0; 0 without. A driver must be at least as new. */
extern const int mla_cuda_toolkit_version;

/* Why there are none, as the end of a sentence; "" when there are some. */
extern const char mla_cuda_images_missing[];

#endif
