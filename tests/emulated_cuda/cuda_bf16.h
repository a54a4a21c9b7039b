/* stands in for the header of the CUDA toolkit */
#include "cuda_runtime_shim.h"
