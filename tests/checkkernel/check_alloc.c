#include "checkkernel.h"
const ck_test ck_alloc_tests[]={{0}};
