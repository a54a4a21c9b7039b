/*
 * acl_device.c - which kind of device this process has.
 */
#define _POSIX_C_SOURCE 200809L
#include "acl_device.h"

#include <pthread.h>
#include <string.h>

#include "acl_status.h"
#include "core/environment.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const compat_device_ops *chosen; /* NULL: `word` names none */
static char word[MLA_WORD_BYTES];       /* what MLA_DEVICE says */

static void choose(void)
{
    mla_environment_word("MLA_DEVICE", word);
    chosen = word[0] == '\0' || strcmp(word, "cpu") == 0 ? &compat_device_cpu
             : strcmp(word, "cuda") == 0                 ? &compat_device_cuda
                                                         : NULL;
}

aclError compat_device(const compat_device_ops **ops)
{
    pthread_once(&once, choose);
    *ops = chosen;
    if (chosen == NULL) {
        return compat_fail(ACL_ERROR_INVALID_PARAM, "the environment variable MLA_DEVICE = \"%s\" must be cpu or cuda",
                           word);
    }
    return ACL_SUCCESS;
}

const compat_device_ops *compat_device_known(void)
{
    pthread_once(&once, choose);
    return chosen != NULL ? chosen : &compat_device_cpu;
}
