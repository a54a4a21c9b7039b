#include "checkkernel.h"
const ck_test ck_case_tests[]={{0}};
