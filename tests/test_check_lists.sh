#!/bin/sh
# test_check_lists.sh checkkernel - its list names tests that it can run: scripts/cpu_check_x86 counts a word that no test
# of a level has in its name as a failure.
. "$(dirname "$0")/tap.sh"

check "the list has the CPU's tests" sh -c '"$1" --list | grep -q "^kernel/"' sh "$1"
check "and none that only a GPU runs" sh -c '! "$1" --list | grep -E "^(cuda|dense)/"' sh "$1"
check "the GPU's list has those" sh -c '"$1" --backend cuda --list | grep -q "^cuda/"' sh "$1"
check "and none of the planner" sh -c '! "$1" --backend cuda --list | grep "^plan/"' sh "$1"
finish
