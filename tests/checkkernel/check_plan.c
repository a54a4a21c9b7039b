#include "checkkernel.h"
const ck_test ck_plan_tests[]={{0}};
