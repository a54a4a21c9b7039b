#include "checkkernel.h"
const ck_test ck_kernel_tests[]={{0}};
