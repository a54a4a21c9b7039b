#include "checkkernel.h"
const ck_test ck_relation_tests[]={{0}};
