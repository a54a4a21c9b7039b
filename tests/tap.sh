# tap.sh - the few lines that let a shell script report like every other test program here. Sourced, not run.
#
#     check "what must hold" command argument...    one test: the command's exit status
#     skip "what was not tested" "why"
#     finish                                        the plan line; exit status 1 if a test failed

set -u
tests_dir=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$tests_dir")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
count=0
failures=0

check()
{
    name=$1
    shift
    count=$((count + 1))
    if ("$@") >"$scratch/check.log" 2>&1; then
        echo "ok $count - $name"
    else
        failures=$((failures + 1))
        echo "not ok $count - $name"
        sed 's/^/# /' "$scratch/check.log"
    fi
}

skip()
{
    count=$((count + 1))
    echo "ok $count - $1 # SKIP $2"
}

finish()
{
    echo "1..$count"
    [ "$failures" -eq 0 ]
    exit
}

# Succeeds when the file is empty, otherwise shows it: for lists of offenders.
is_empty()
{
    [ ! -s "$1" ] || { cat "$1"; return 1; }
}
